"use strict";
// Loads the page again at intervals and replaces only the parts marked data-live, so that focus, scroll position,
// selection and typed text stay. Without this script, the pages work too, but are not updated.
(() => {
  const every = 1000 * Number(document.body.dataset.every);
  const status = document.getElementById("updates");
  const button = document.getElementById("pause");

  document.addEventListener("click", async ({ target }) => {
    if (!target.matches(".copy")) return;
    const command = target.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(command.textContent);
      target.textContent = "Copied";
    } catch {
      document.getSelection().selectAllChildren(command);
      target.textContent = "Press Ctrl-C";
    }
    setTimeout(() => {
      target.textContent = "Copy";
    }, 2000);
  });

  const format = new Intl.DateTimeFormat("sv-SE", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    timeZoneName: "short",
  });

  // Times are in UTC; the reader's own stands beside them.
  const tellLocal = (page) => {
    for (const time of page.querySelectorAll("time")) {
      const moment = new Date(time.dateTime);
      const local = format.format(moment);
      time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC · ${local}`;
      if (!time.matches(".at") || !moment.getTimezoneOffset()) continue;
      const sameDay = time.dateTime.startsWith(local.slice(0, 10));
      time.append(` · ${sameDay ? local.slice(11) : local}`);
    }
  };
  tellLocal(document);

  const live = [...document.querySelectorAll("[data-live]")];
  if (!live.length) return;
  let paused = sessionStorage.getItem("paused") === "yes";

  const say = (text) => {
    if (status.textContent !== text) status.textContent = text;
  };

  const show = () => {
    button.hidden = false;
    button.setAttribute("aria-pressed", String(paused));
    say(paused ? "updates are paused" : "");
  };

  const selected = (part) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };

  const focusable = (part) => [...part.querySelectorAll("a, button, summary, [tabindex]")];

  const replace = (page) => {
    tellLocal(page);
    document.title = page.title;
    for (const part of live) {
      const fresh = page.getElementById(part.id);
      if (!fresh || selected(part)) continue;
      for (const details of part.querySelectorAll("details[open]")) {
        fresh.querySelector(`#${details.id}`)?.setAttribute("open", "");
      }
      if (fresh.innerHTML === part.innerHTML) continue;
      const focused = focusable(part).indexOf(document.activeElement);
      const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      part.replaceChildren(...fresh.childNodes);
      part.querySelectorAll(".scroll").forEach((box, index) => {
        box.scrollLeft = scrolled[index] || 0;
      });
      if (focused >= 0) focusable(part)[focused]?.focus({ preventScroll: true });
    }
  };

  const update = async () => {
    if (paused || document.hidden) return;
    try {
      const response = await fetch(location.href, { redirect: "error", signal: AbortSignal.timeout(30000) });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (response.ok) replace(page);
      say(response.ok ? "" : `not updated: ${page.querySelector("h1")?.textContent}`);
    } catch {
      say("not updated: the console does not answer");
    }
  };

  const again = async () => {
    await update();
    setTimeout(again, every);
  };

  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    show();
    update();
  });
  show();
  setTimeout(again, every);
})();
