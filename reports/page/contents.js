"use strict";
// Where the reader is: the contents follow, and what an address names is opened and shown.
{
  const links = new Map([...document.querySelectorAll("nav > ul a")].map((link) => [link.hash.slice(1), link]));
  const mark = (shown) => {
    for (const [name, link] of links) {
      if (name === shown) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  /** A section by its heading, and what in it has a link of its own. */
  const place = (name) => {
    const element = document.getElementById(name);
    return element?.closest(element.matches("h2") ? "section" : "article, details");
  };
  const names = new Map([...links.keys()].map((name) => [place(name), name]).filter(([element]) => element));
  const seen = new Set();
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target);
      const inmost = [...names.keys()].filter((element) => seen.has(element)).pop() ?? (window.scrollY < 100 && [...names.keys()][0]);
      if (inmost) mark(names.get(inmost));
    },
    { rootMargin: "-20% 0px -79% 0px" }, // a line across the screen
  );
  for (const element of names.keys()) watch.observe(element);

  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let around = target.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
    if (target.hidden) target.hidden = false;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  for (const card of document.querySelectorAll("details.card")) {
    card.addEventListener("toggle", () => { if (card.open) history.replaceState(null, "", `#${card.id}`); });
  }
}
