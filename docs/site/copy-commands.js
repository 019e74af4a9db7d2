// What is copied of a block with commands: the commands, without the prompt and without what they print.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("[data-clipboard-target]");
    const code = button && document.querySelector(button.dataset.clipboardTarget);
    if (!code?.closest(".language-console")) return;
    const commands = [];
    for (const line of code.textContent.split("\n")) {
      if (line.startsWith("$ ")) commands.push(line.slice(2));
      else if (commands.length && commands.at(-1).endsWith("\\")) commands.push(line);
    }
    button.dataset.clipboardText = commands.join("\n");
  },
  true,
);
