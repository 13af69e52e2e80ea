// Questions before what cannot be undone, ticking many rows at once, and bulk steps that go on by themselves.
function ask(form, button) {
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  text.textContent = form.dataset.confirm;
  const buttons = document.createElement("p");
  buttons.className = "buttons";
  const yes = document.createElement("button"),
    no = document.createElement("button");
  yes.className = "danger";
  yes.textContent = (button ?? form.querySelector("button"))?.textContent.replace("…", "").trim() || "Continue";
  no.textContent = "Cancel";
  buttons.append(yes, no);
  dialog.append(text, buttons);
  document.body.append(dialog);
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus();
  });
  no.addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => {
    delete form.dataset.confirm;
    dialog.close();
    form.requestSubmit(button);
  });
  dialog.showModal();
  no.focus();
}

function count() {
  const boxes = [...document.querySelectorAll("input[name=id]")];
  const number = boxes.filter((box) => box.checked).length;
  const told = document.querySelector("[data-ticked]");
  if (told) told.textContent = number ? `(${number})` : "";
  const all = document.querySelector("[data-tick-all]");
  if (all) {
    all.hidden = false;
    all.checked = boxes.length > 0 && number === boxes.length;
    all.indeterminate = number > 0 && number < boxes.length;
  }
}

let isListening = false;

export function startForms() {
  count();
  if (isListening) return;
  isListening = true;
  document.addEventListener("submit", (event) => {
    if (event.target.dataset?.confirm) {
      event.preventDefault();
      ask(event.target, event.submitter);
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-tick-all]"))
      for (const box of document.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
    if (event.target.matches("input[type=checkbox]")) count();
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text.trim());
      button.textContent = "copied";
    } catch {
      button.textContent = "could not copy";
    }
    setTimeout(() => {
      button.textContent = button.dataset.says ?? "copy";
    }, 1500);
  });
  const undo = document.querySelector("[data-undo]");
  if (undo) {
    // Whoever is about to press it shall not miss it.
    const over = () => (undo.matches(":hover, :focus-within") ? setTimeout(over, 1000) : undo.remove());
    setTimeout(over, 8000);
  }
  const going = document.querySelector("[data-goes-on]");
  if (going) setTimeout(() => going.requestSubmit(), 300);
}
