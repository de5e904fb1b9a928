"use strict";
// Which candidate to take, and the sentences that say so: verdict.py and sentences.py, line by line, for moved sliders.
const verdict = (() => {
  const [GAIN, TIE, BAND, TINY, EXACT] = [1.1, 1.05, 0.5, 1e-6, 1e-9];
  const KEYS = ["accuracy", "hours", "cpu_hours", "gb", "ensemble", "validation", "global_gb"]; // of a score; the last two may be null

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const typical = (ratios) => Math.exp(mean(ratios.map(Math.log)));
  const knownMean = (values) => (values.includes(null) ? null : mean(values));
  const ratio = (base, own) => (base + TINY) / (own + TINY);
  const column = (candidate, key) => candidate.scores.map((score) => score[KEYS.indexOf(key)]);
  const six = (value) => Math.round(value * 1e6);
  const least = (items, ...keys) =>
    items.reduce((best, item) => {
      const key = keys.find((of) => of(item) !== of(best));
      return key && key(item) < key(best) ? item : best;
    });

  function reference(candidates) {
    const every = candidates.map((_, i) => i);
    const whole = every.some((i) => !candidates[i].early) ? every.filter((i) => !candidates[i].early) : every;
    const plain = whole.some((i) => candidates[i].n === 1) ? whole.filter((i) => candidates[i].n === 1) : whole;
    return least(plain, (i) => -six(mean(column(candidates[i], "accuracy"))));
  }

  function makeRow(candidate, base, limits) {
    let pairs = candidate.scores.flatMap((score, i) => {
      const at = base.seeds.indexOf(candidate.seeds[i]);
      return at < 0 ? [] : [[base.scores[at], score]];
    });
    const paired = pairs.length > 0;
    if (!paired) pairs = [[base, candidate].map((one) => KEYS.map((key) => knownMean(column(one, key))))];
    const row = {
      candidate,
      drops: pairs.map(([b, s]) => b[0] - s[0]),
      speeds: pairs.map(([b, s]) => ratio(b[1], s[1])),
      savings: pairs.map(([b, s]) => ratio(b[2], s[2])),
      paired,
      hours: mean(column(candidate, "hours")),
      last: Math.max(...column(candidate, "hours")),
      cpu_hours: mean(column(candidate, "cpu_hours")),
      gb: mean(column(candidate, "gb")),
      ensembleDrop: mean(pairs.map(([b, s]) => b[0] - s[4])),
      validationDrop: knownMean(pairs.map(([b, s]) => (b[5] === null || s[5] === null ? null : b[5] - s[5]))),
      globalGb: knownMean(column(candidate, "global_gb")),
    };
    row.drop = mean(row.drops);
    row.speed = typical(row.speeds);
    const spent = { accuracy: row.drop, hours: row.last, cpu_hours: row.cpu_hours, gb: row.gb };
    row.fails = Object.keys(spent).filter((key, i) => limits[i] !== null && spent[key] > limits[i] + EXACT);
    return row;
  }

  function best(rows, among) {
    if (!among.length) return null;
    const fastest = Math.max(...among.map((i) => rows[i].speed));
    return mostAccurate(rows, among.filter((i) => rows[i].speed * TIE >= fastest - EXACT));
  }

  const mostAccurate = (rows, among) => least(among, (i) => six(rows[i].drop), (i) => -six(typical(rows[i].savings)));

  // As soon and more accurate.
  function isBetter(row, band) {
    return row.speed * TIE >= 1 - EXACT && row.drop < -band - EXACT && row.drops.every((drop) => drop < -EXACT);
  }

  // limits: points, hours, CPU hours, GB; null where there is none.
  function decide(candidates, limits, samples) {
    const base = reference(candidates);
    const rows = candidates.map((one) => makeRow(one, candidates[base], limits));
    const every = rows.map((_, i) => i);
    const fitting = every.filter((i) => !rows[i].fails.length);
    const gaining = fitting.filter((i) => rows[i].speed >= GAIN - EXACT);
    const share = Math.min(Math.max(mean(column(candidates[base], "accuracy")) / 100, 0), 1);
    const band = (samples ? 100 * Math.sqrt((share * (1 - share)) / samples) : 0) || BAND;
    const better = fitting.filter((i) => isBetter(rows[i], band));
    let chosen = base;
    if (gaining.length || !fitting.includes(base)) chosen = best(rows, gaining.length ? gaining : fitting);
    else if (better.length) chosen = mostAccurate(rows, better);
    const faster = GAIN * (chosen === null ? 1 : rows[chosen].speed) - EXACT;
    const missing = every.filter((i) => rows[i].fails.join() === "accuracy" && rows[i].speed >= faster);
    const near = best(rows, missing.filter((i) => rows[i].drop - limits[0] <= band + EXACT));
    const distilling = missing.filter((i) => {
      const { candidate, ensembleDrop } = rows[i];
      return candidate.distilled && candidate.n > 1 && ensembleDrop <= limits[0] + EXACT;
    });
    const lost = near === null ? best(rows, distilling) : null;
    return { rows, reference: base, chosen, near, lost, missing, limits, band };
  }

  // The words.
  function fixed(value, digits) {
    const scale = 10 ** digits;
    const text = (Math.floor(Math.abs(value) * scale + 0.5 + EXACT) / scale).toFixed(digits);
    const [whole, part] = text.split(".");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
  }
  const number = (value) => fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
  const short = (value) => (value && value < 0.01 ? "< 0.01" : number(value));
  const count = (value, noun) => `${value} ${noun}${value === 1 ? "" : "s"}`;
  function points(value, exact) {
    const text = exact ? fixed(value, 2).replace(/0+$/, "").replace(/\.$/, "") : fixed(value, 1);
    return `${text} point${text === "1" ? "" : "s"}`;
  }
  const overBy = (excess) => (excess >= 0.05 ? fixed(excess, 1) : fixed(Math.max(excess, 0.01), 2));
  function pace(speed) {
    if (speed >= TIE - EXACT) return `ends ${fixed(speed, speed >= GAIN - EXACT ? 1 : 2)}× sooner`;
    return speed * TIE <= 1 + EXACT ? `ends ${fixed(1 / speed, 2)}× later` : "ends no sooner";
  }
  const would = (speed) => pace(speed).replace("ends", "would end");
  function loss(drop, of = "") {
    if (Math.abs(drop) < 0.05) return `loses nothing${of}`;
    return `${drop > 0 ? "loses" : "gains"} ${points(drop)}${of}`;
  }

  function verdictOf(choice, i) {
    const [row, limits] = [choice.rows[i], choice.limits];
    if (i === choice.chosen) return "best within your limits";
    if (row.fails.length) {
      const texts = {
        accuracy: `${loss(row.drop)}, ${overBy(row.drop - limits[0])} over your limit`,
        hours: `ends after ${number(row.last)} h, past your deadline`,
        cpu_hours: `takes ${number(row.cpu_hours)} CPU hours, over your budget`,
        gb: `sends ${number(row.gb)} GB, over your limit`,
      };
      return row.fails.map((key) => texts[key]).join("; ");
    }
    if (i === choice.reference) return "the reference";
    return row.speed >= GAIN - EXACT ? "fits, but gains less" : `fits, gains no time (${fixed(row.speed, 2)}×)`;
  }

  function closest({ rows, near }) {
    return near ?? least(rows.map((_, i) => i), (i) => rows[i].fails.length, (i) => rows[i].drop);
  }

  function headline(choice, metric) {
    const { rows, limits } = choice;
    const base = rows[choice.reference].candidate.name;
    const onlyN = rows.every((row) => row.candidate.name === `n = ${row.candidate.n}`);
    const subject = onlyN ? "No n" : "None of these";
    if (choice.chosen === null) return `${subject} fits these limits; ${rows[closest(choice)].candidate.name} comes closest`;
    if (choice.chosen !== choice.reference) {
      const row = rows[choice.chosen];
      return `${row.candidate.name} ${pace(row.speed)} than ${base} and ${loss(row.drop, ` of ${metric}`)}`;
    }
    if (choice.lost !== null) {
      const row = rows[choice.lost];
      return `Keep ${base} until distillation works: it loses ${points(row.drop - row.ensembleDrop)} at ${row.candidate.name}`;
    }
    const within = limits.slice(1).some((limit) => limit) ? "these limits" : points(limits[0], true);
    const other = choice.near === null ? "" : `, or try ${rows[choice.near].candidate.name}`;
    return `${subject} gains time within ${within}: keep ${base}${other}`;
  }

  function detail(choice, { samples, unit }, verdicts) {
    const { rows, chosen, reference: at } = choice;
    const [texts, base] = [[], rows[at]];
    if (chosen === null && choice.near === null) {
      const i = closest(choice);
      return `${rows[i].candidate.name} ${verdicts[i]}.`;
    }
    if (chosen !== null && chosen !== at) {
      const row = rows[chosen];
      texts.push(
        `It ends after ${number(row.hours)} h instead of ${number(base.hours)}, takes ${number(row.cpu_hours)} CPU ` +
          `hours instead of ${number(base.cpu_hours)} and sends ${number(row.gb)} GB instead of ${number(base.gb)}.`,
      );
    }
    if (choice.near !== null) {
      const row = rows[choice.near];
      const told = samples ? `, less than ${fixed(samples, 0)} test ${unit} can tell (±${fixed(choice.band, 1)})` : "";
      const over = overBy(row.drop - choice.limits[0]);
      texts.push(`${row.candidate.name} ${would(row.speed)} and misses your limit by ${over} points${told}.`);
    } else if (choice.lost !== null) {
      const row = rows[choice.lost];
      const [ensemble, student] = ["ensemble", "accuracy"].map((key) => fixed(mean(column(row.candidate, key)), 1));
      texts.push(
        `${row.candidate.name} ${would(row.speed)}: its ensemble has ${ensemble} %, its student ` +
          `${student} %, so the distillation loses it, not n.`,
      );
    } else if (choice.missing.length) {
      const i = least(choice.missing, (one) => rows[one].drop);
      texts.push(`${rows[i].candidate.name} ${would(rows[i].speed)}, but ${verdicts[i]}.`);
    }
    const others = rows.map((_, i) => i).filter((i) => i !== at && !rows[i].fails.length);
    const second = best(rows, others);
    if (chosen === at && second !== null) {
      const { candidate, speed, speeds } = rows[second];
      const shown = speeds.slice(0, 5).map((one) => `${fixed(one, 2)}×`).join(", ") + (speeds.length > 5 ? " …" : "");
      texts.push(`Within the limits ${candidate.name} ${pace(speed)}, seed by seed ${shown}.`);
    }
    return texts.join(" ");
  }

  function evidence(choice, { metric, samples, unit }) {
    const base = choice.rows[choice.reference];
    const row = choice.chosen === null ? base : choice.rows[choice.chosen];
    let seeds = count(row.candidate.scores.length, "seed");
    if (!row.paired) seeds = `no seed in common with ${base.candidate.name}`;
    else if (row !== base) {
      const sooner = row.speed >= GAIN - EXACT || row.drop > EXACT;
      const those = sooner ? row.speeds.filter((speed) => speed >= TIE - EXACT) : row.drops.filter((drop) => drop < -EXACT);
      const told = `${sooner ? "faster" : "more accurate"} in ${those.length} of ${row.speeds.length} seeds`;
      seeds = row.speeds.length > 1 ? told : "one seed only";
    }
    const one = samples ? `${fixed(samples, 0)} test ${unit}, one is ${number(100 / samples)} points` : `metric ${metric}`;
    const cut = base.candidate.cut_off + (row === base ? 0 : row.candidate.cut_off);
    const texts = [seeds, one, cut ? `${count(cut, "cohort")} cut off` : "none cut off"];
    if (row !== base && row.validationDrop !== null) texts.push(`on validation samples it ${loss(row.validationDrop)}`);
    return texts.join(" · ");
  }

  // measure: metric, samples, unit.
  function sentences(choice, measure) {
    const verdicts = choice.rows.map((_, i) => verdictOf(choice, i));
    return {
      headline: headline(choice, measure.metric),
      detail: detail(choice, measure, verdicts),
      evidence: evidence(choice, measure),
      verdicts,
    };
  }

  return { decide, sentences, fixed, number, short, points, mean, typical };
})();
