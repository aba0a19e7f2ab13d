// Says since when a page has not been updated, because the server does not answer or no longer has what it shows.
"use strict";

(() => {
  const notice = document.getElementById("stale");
  let updated = new Date();
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) {
      updated = new Date();
    } else if (notice.hidden) {
      notice.textContent = `This page has not been updated since ${updated.toLocaleTimeString()}; it may be out of date.`;
    }
    notice.hidden = Boolean(event.detail.successful);
  });
})();
