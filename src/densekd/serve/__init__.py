"""``densekd serve``: predictions of a model over HTTP."""
