"use strict";
// The title of the browser's tab tells how far the runs are.
(() => {
  const tell = () => {
    const tab = document.querySelector("[data-part=tab]");
    if (tab && document.title !== tab.textContent) document.title = tab.textContent;
  };
  new MutationObserver(tell).observe(document.getElementById("report"), { childList: true, subtree: true });
  tell();
})();
