// An area to drop images and folders on; sends a JSON list of the uploads. For gr.HTML's js_on_load.
const PARALLEL = 8;
const LARGEST = 200 * 2 ** 20;  // bytes, as the server's limit

const showStatus = (text) => { element.querySelector(".kd-status").textContent = text; };

// The browser doesn't know the kind of every image; the server leaves out those that aren't any.
const usable = ([, file]) =>
  file.size <= LARGEST && (!file.type || file.type.startsWith("image/"));

async function uploadAll(dropped) {
  const uploads = [], files = dropped.filter(usable), skipped = dropped.length - files.length;
  try {
    for (let i = 0; i < files.length; i += PARALLEL) {
      showStatus(`Uploading ${i + 1} of ${files.length}`);
      const sent = files.slice(i, i + PARALLEL).map(async ([name, file]) =>
        ({ name, file: (await upload(file)).path }));
      uploads.push(...await Promise.all(sent));
    }
    const several = skipped === 1 ? "1 file was" : `${skipped} files were`;
    showStatus(skipped ? `${several} left out: not an image, or more than 200 MB.` : "");
  } catch (error) {
    showStatus("Upload failed: a file can't be read, or `densekd ui` has ended; start it again if so.");
    return;
  }
  if (!uploads.length) return;
  props.value = JSON.stringify(uploads);
  trigger("upload");
}

async function walk(entry, before, found) {
  const path = before + entry.name;
  if (entry.isFile) {
    found.push([path, await new Promise((done, failed) => entry.file(done, failed))]);
    return;
  }
  const reader = entry.createReader();
  for (;;) {  // a reader gives a part of the entries at a time
    const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!entries.length) return;
    for (const each of entries) await walk(each, path + "/", found);
  }
}

element.addEventListener("click", (event) => {
  const kind = event.target.dataset.choose;
  if (kind) element.querySelector(`input[data-kind=${kind}]`).click();
});
element.addEventListener("change", (event) => {
  const files = [...event.target.files].map((file) => [file.webkitRelativePath || file.name, file]);
  event.target.value = "";
  uploadAll(files);
});
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", async (event) => {
  event.preventDefault();
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry());
  const found = [];
  try {
    for (const entry of entries) if (entry) await walk(entry, "", found);
  } catch (error) {
    showStatus(`What was dropped can't be read (${error.message}); try "Choose a folder".`);
    return;
  }
  uploadAll(found);
});
