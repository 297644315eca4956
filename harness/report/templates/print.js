// SPDX-License-Identifier: MIT OR Apache-2.0
(() => {
  "use strict";
  // Paper unfolds nothing.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));
})();
