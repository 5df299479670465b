// Takes photos for a drop area, after drop.js. For gr.HTML's js_on_load.
const camera = element.querySelector(".kd-camera"), video = camera.querySelector("video");
const REASONS = {
  NotAllowedError: "The browser doesn't allow the camera; allow it for this page and try again.",
  NotFoundError: "No camera was found; connect one and try again.",
  NotReadableError: "The camera is in use; close the other program and try again.",
};

function closeCamera() {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
  camera.hidden = true;
}

// The camera must not stay on while another tab of the page is shown.
function closeIfHidden() {
  if (!element.offsetHeight) closeCamera();
}

async function openCamera() {
  closeCamera();
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({
      video: { facingMode: "environment", width: { ideal: 1280 } },
    });
    camera.hidden = false;
    closeIfHidden();
    showStatus("");
  } catch (error) {
    showStatus(REASONS[error.name] ?? `The camera can't be used: ${error.message}`);
  }
}

function takePhoto() {
  if (!video.videoWidth) return;  // it shows nothing yet
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  const name = `camera ${new Date().toISOString().replace(/:/g, ".")}.jpg`;
  canvas.toBlob((photo) => uploadAll([[name, new File([photo], name)]]), "image/jpeg", 0.95);
}

const CAMERA = { open: openCamera, take: takePhoto, close: closeCamera };
element.addEventListener("click", (event) => CAMERA[event.target.dataset.camera]?.());
new ResizeObserver(closeIfHidden).observe(element);
