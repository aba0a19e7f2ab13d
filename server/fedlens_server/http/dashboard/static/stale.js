// Says since when a page has not been renewed, because the server does not answer or no longer has what it shows.
"use strict";

(() => {
  const notice = document.getElementById("stale");
  let renewed = new Date();
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) {
      renewed = new Date();
    } else if (notice.hidden) {
      notice.textContent = `This page has not been renewed since ${renewed.toLocaleTimeString()}; it may be out of date.`;
    }
    notice.hidden = Boolean(event.detail.successful);
  });
})();
