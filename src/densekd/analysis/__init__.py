"""What can be found out about finished runs, and what else dense distillation is good for."""
