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
};
