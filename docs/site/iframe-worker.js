// A page that is opened as a file may not start workers. There the worker of the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      window.addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      this.loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      const script = (text) => `<script${text}</` + "script>";
      const inside = frame.contentWindow.document;
      inside.open();
      inside.write(
        script(`>
          postMessage = (data) => parent.postMessage(data, "*");
          importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
            const script = document.createElement("script");
            script.src = url;
            script.onload = resolve;
            document.body.appendChild(script);
          })), Promise.resolve());
        `) + script(` src="${url}">`)
      );
      inside.close();
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
