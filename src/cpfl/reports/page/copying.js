"use strict";
// What a reader takes along: the command, the sentence, and the table as Markdown, LaTeX or CSV.
const copying = (() => {
  const HEAD = ["", "accuracy %", "hours", "CPU hours", "traffic GB", "times sooner", "points lost", "verdict"];

  function spread(values, digits) {
    const mean = verdict.mean(values);
    const text = verdict.fixed(mean, digits);
    if (values.length < 2) return text;
    const squares = values.map((value) => (value - mean) ** 2);
    return `${text} ± ${verdict.fixed(Math.sqrt((verdict.mean(squares) * values.length) / (values.length - 1)), digits)}`;
  }

  function cells({ choice, words }) {
    return choice.rows.map((row, i) => {
      const column = (key) => row.candidate.scores.map((score) => score[key]);
      return [
        row.candidate.name, spread(column(0), 1), spread(column(1), 2), spread(column(2), 1), spread(column(3), 2),
        verdict.fixed(row.speed, 2), `${row.drop < 0 ? "-" : ""}${verdict.fixed(row.drop, 2)}`, words.verdicts[i],
      ];
    });
  }

  const head = (now) => HEAD.map((text) => text.replace("accuracy", now.data.metric));
  const FORMATS = {
    "Copy command": (now) => now.command,
    "Copy sentence": (now) => `${now.words.headline}. (${now.words.evidence}.) ${now.words.detail}`.trim(),
    Markdown: (now) => {
      const line = (texts) => `| ${texts.map((text) => text.replace(/[|\\]/g, "\\$&")).join(" | ")} |`;
      return [line(head(now)), `|${"---|".repeat(HEAD.length)}`, ...cells(now).map(line)].join("\n");
    },
    LaTeX: (now) => {
      const safe = (text) => text.replace(/[\\{}]/g, "").replace(/[%&_#$]/g, "\\$&").replace(/±/g, "$\\pm$").replace(/×/g, "$\\times$").replace(/α/g, "$\\alpha$").replace(/[\^~]/g, " ");
      const line = (texts) => `${texts.map(safe).join(" & ")} \\\\`;
      return [`\\begin{tabular}{l${"r".repeat(HEAD.length - 2)}l}`, line(head(now)), "\\hline", ...cells(now).map(line), "\\end{tabular}"].join("\n");
    },
    CSV: ({ data }) => {
      const safe = (text) => `"${(/^[=+\-@\t]/.test(text) ? "'" : "") + text.replace(/"/g, '""')}"`; // no formula in a spreadsheet
      const lines = data.candidates.flatMap((one) => one.scores.map((score, i) => [safe(one.name), one.n, one.seeds[i], ...score.map((value) => value ?? "")].join(",")));
      return ["candidate,n,seed,accuracy,hours,cpu_hours,traffic_gb,ensemble,validation,global_gb", ...lines].join("\n");
    },
  };

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // an older browser, or a page that is not from a secure place
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  // Buttons that copy what `current()` gives when they are pressed.
  function buttons(current) {
    const box = document.createElement("p");
    const status = document.createElement("span");
    box.className = "tools";
    status.setAttribute("role", "status");
    for (const [name, format] of Object.entries(FORMATS)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", async () => {
        await copy(format(current()));
        status.textContent = `${name.replace("Copy ", "")} copied`;
      });
      box.append(button);
    }
    box.append(status);
    return box;
  }

  return { buttons, FORMATS };
})();
