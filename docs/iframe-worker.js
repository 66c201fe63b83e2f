// A browser starts no worker for a page that is a file, and the site's search is one: its script runs in a frame instead.
// The name keeps the theme's plugin `offline` from loading such a script from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      this.inside = frame.contentWindow;
      // Firefox would load the empty page of a new frame a second time, and lose the script, had it not been opened.
      this.inside.document.open();
      this.inside.document.write("<body>");
      this.inside.document.close();
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((resolve) => { script.onload = resolve; });
      script.src = url;
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
