// A page that was opened as a file may not start a worker, and material's search is one: there it runs in a hidden
// frame. After another version of material, search in a page that was opened as a file.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const script = document.createElement("script");
      script.src = new URL(url, document.baseURI);
      const answer = "<script>postMessage = data => parent.postMessage(data, '*')<\/script>";
      frame.srcdoc = answer + script.outerHTML;
      const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      this.send = (data) => loaded.then(() => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.send(data);
    }
  };
}
