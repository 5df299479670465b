// A place to drop images and folders; what was received is told as JSON, for gr.HTML's js_on_load.
const AT_ONCE = 8;

const say = (text) => { element.querySelector(".kd-said").textContent = text; };

async function take(files) {
  const told = [];
  try {
    for (let i = 0; i < files.length; i += AT_ONCE) {
      say(`Receiving ${i + 1} of ${files.length}`);
      const sent = files.slice(i, i + AT_ONCE).map(async ([name, file]) =>
        ({ name, file: (await upload(file)).path }));
      told.push(...await Promise.all(sent));
    }
    say("");
  } catch (error) {
    say("Not all of it was received; is the server still running?");
    return;
  }
  if (!told.length) return;
  props.value = JSON.stringify(told);
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
  take(files);
});
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", async (event) => {
  event.preventDefault();
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry());
  const found = [];
  for (const entry of entries) if (entry) await walk(entry, "", found);
  take(found);
});
