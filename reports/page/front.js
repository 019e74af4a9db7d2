"use strict";
// What to use, by the loss of quality that a reader allows: every answer is on the page, one of each card is shown.
(() => {
  const tools = document.querySelector(".allow");
  if (!tools) return;
  const [slider, output] = [tools.querySelector("input"), tools.querySelector("output b")];
  const usual = slider.value;
  const answers = [...document.querySelectorAll(".advised .option")];
  const paying = document.querySelector(".summary strong");

  const show = () => {
    const percent = Number(slider.value);
    for (const answer of answers) {
      const { from, until } = answer.dataset;
      answer.hidden = percent < Number(from) || (until !== undefined && percent >= Number(until));
    }
    output.textContent = percent;
    if (paying) paying.textContent = answers.filter((answer) => !answer.hidden && "pays" in answer.dataset).length;
    slider.setAttribute("aria-valuetext", `${percent} %`);
    document.dispatchEvent(new CustomEvent("allowed", { detail: percent }));
  };
  const allow = (percent) => {
    slider.value = percent;
    address.set("loss", slider.value, usual);
    show();
  };
  slider.addEventListener("input", () => allow(slider.value));
  for (const button of document.querySelectorAll("[data-allow]")) {
    button.addEventListener("click", () => { allow(button.dataset.allow); slider.focus(); });
    button.hidden = false;
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([button.closest("details").querySelector("code").textContent], { type: "application/toml" }));
      link.download = button.dataset.save;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    button.hidden = false;
  }
  // without a script the links lead to the answers of whichever run stands there
  for (const link of document.querySelectorAll("[data-answers]")) link.hash = `doc=&a=${link.dataset.answers}`;
  const asked = Number(address.get("loss") ?? NaN);
  if (asked >= 0) slider.value = asked;
  tools.hidden = false;
  show();
})();
