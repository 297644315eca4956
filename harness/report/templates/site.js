// SPDX-License-Identifier: MIT OR Apache-2.0
// Hides the metrics that do not have every word.
"use strict";
(() => {
  const form = document.getElementById("find");
  if (!form) return;
  const input = form.querySelector("input");
  const rows = [...document.querySelectorAll("tr[data-metric]")];
  const chapters = [...document.querySelectorAll("section[data-metrics]")];
  const find = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    for (const chapter of chapters) {
      chapter.hidden = !chapter.querySelector("tr[data-metric]:not([hidden])");
    }
    const all = words.every((word) => word === "");
    form.querySelector("output").value = all ? "" : `${count} of ${rows.length} metrics`;
  };
  input.addEventListener("input", find);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  // A browser keeps what was typed before a reload.
  find();
})();
