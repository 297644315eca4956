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
        part.toggleAttribute("hidden", [...chosen].some(([choice, value]) => {
          const shown = part.dataset[choice];
          return shown !== undefined && !shown.split(" ").includes(value);
        }));
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

  // Flame graphs: zoom and search.
  const LETTER = 6.4;
  for (const flame of document.querySelectorAll(".flame")) {
    const WHOLE = flame.querySelector("svg").viewBox.baseVal.width;
    const frames = [...flame.querySelectorAll(".frame")].map((group) => {
      const rect = group.querySelector("rect");
      const number = (name) => Number(rect.getAttribute(name));
      const [x, y, width] = [number("x"), number("y"), number("width")];
      const text = group.querySelector("text");
      return { group, rect, text, x, y, width, name: text.dataset.name };
    });
    const SLACK = 0.15;

    const zoom = (to) => {
      const scale = WHOLE / to.width;
      for (const frame of frames) {
        const within = frame.y >= to.y && frame.x >= to.x - SLACK &&
          frame.x + frame.width <= to.x + to.width + SLACK;
        const above = frame.y < to.y && frame.x <= to.x + SLACK &&
          frame.x + frame.width >= to.x + to.width - SLACK;
        frame.group.style.display = within || above ? "" : "none";
        frame.group.classList.toggle("above", above);
        const x = above ? 0 : (frame.x - to.x) * scale;
        const width = above ? WHOLE : frame.width * scale;
        frame.rect.setAttribute("x", x);
        frame.rect.setAttribute("width", width);
        frame.text.setAttribute("x", x + 3);
        const letters = Math.floor((width - 6) / LETTER);
        const whole = frame.name.length <= letters;
        const cut = letters < 3 ? "" : `${frame.name.slice(0, letters - 1)}…`;
        frame.text.textContent = whole ? frame.name : cut;
      }
    };

    const form = flame.querySelector(".seek");
    const input = form.querySelector("input");
    const seek = () => {
      const words = input.value.trim().toLowerCase();
      let count = 0;
      for (const frame of frames) {
        const hit = words !== "" && frame.name.toLowerCase().includes(words);
        frame.group.classList.toggle("hit", hit);
        count += hit ? 1 : 0;
      }
      form.querySelector("output").value = words === "" ? "" : `${count} frames`;
    };

    for (const frame of frames) {
      frame.group.addEventListener("click", () => zoom(frame));
      frame.group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          zoom(frame);
        }
      });
    }
    input.addEventListener("input", seek);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
  }
})();
