"use strict";
// What a reader has set stands in the page's address, behind the question mark, so that a link shows the same; places stand behind #.
const address = {
  get: (name) => new URLSearchParams(location.search).get(name),
  set(name, value, usual = "") {
    const asked = new URLSearchParams(location.search);
    if (value === usual || value === "") asked.delete(name);
    else asked.set(name, value);
    const search = asked.size ? `?${asked}` : location.pathname;
    history.replaceState(history.state, "", search + location.hash);
  },
  // Filters of a table: each has what the address says, and tells it what a reader sets. Of several tables each has a prefix.
  keep(fields, prefix = "") {
    for (const field of fields) {
      const label = field.closest("label").firstChild.textContent.trim();
      const name = prefix + label.toLowerCase().replace(/\W+/g, "-");
      field.addEventListener("input", () => address.set(name, field.value));
      const asked = address.get(name);
      if (asked === null) continue;
      field.value = asked;
      if (field.value !== asked) field.value = "";
      else field.dispatchEvent(new Event("input"));
    }
  },
};
