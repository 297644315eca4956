// SPDX-License-Identifier: MIT OR Apache-2.0
// Hides and shows what the page already has. All numbers come from the page.
"use strict";
(() => {
  const form = document.getElementById("switches");
  if (form) {
    const selects = [...form.querySelectorAll("select")];
    const switched = [...document.querySelectorAll("[data-model], [data-filter], [data-depth]")];
    const records = [...document.querySelectorAll("td[data-index]")];
    const listings = [...document.querySelectorAll(".records")];
    const search = document.getElementById("search");
    const found = document.getElementById("found");

    const choose = () => {
      const chosen = new Map(selects.map((select) => [select.dataset.choice, select.value]));
      for (const part of switched) {
        part.hidden = [...chosen].some(([choice, value]) => {
          const shown = part.dataset[choice];
          return shown !== undefined && !shown.split(" ").includes(value);
        });
      }
      const depth = Number(chosen.get("depth"));
      for (const record of records) {
        record.classList.toggle("lost", Number(record.dataset.index) >= depth);
      }
      find();
    };

    const find = () => {
      const words = search.value.trim().toLowerCase();
      let count = 0;
      for (const listing of listings) {
        const tables = [...listing.querySelectorAll("summary, .scroll:not([hidden])")];
        const fits = tables.some((part) => part.textContent.toLowerCase().includes(words));
        listing.hidden = !fits;
        count += fits ? 1 : 0;
      }
      found.value = words === "" ? "" : `${count} of ${listings.length} listings`;
    };

    selects.forEach((select) => select.addEventListener("change", choose));
    search.addEventListener("input", find);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
    // A browser keeps what was chosen before a reload.
    choose();
  }

  // Paper unfolds nothing.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));
})();
