// Shows an answer as it streams. What a token is and how many candidates were reached comes from the server; here it is
// only counted and drawn.
"use strict";

const $ = (id) => document.getElementById(id);
const LANES = ["main", "plain"];
let running = null; // the AbortController of the answer in progress
let lanes = {};
let places = [];

function fresh() {
  lanes = Object.fromEntries(LANES.map((name) => [name, { tokens: 0, rounds: 0, kept: 0, first: 0, seconds: 0, done: false }]));
  places = [];
  for (const name of LANES) {
    $(`answer-${name}`).replaceChildren();
    $(`count-${name}`).textContent = "";
    $(`speed-${name}`).textContent = "–";
  }
  $("tau").textContent = $("ratio").textContent = "–";
  drawPlaces();
}

function say(text, fault = false) {
  $("status").textContent = text;
  $("status").classList.toggle("fault", fault);
}

function signNode(character) {
  const sign = document.createElement("span");
  sign.className = "sign";
  sign.textContent = character;
  sign.setAttribute("aria-hidden", "true");
  return sign;
}

// A token with signs for what cannot be seen: line ends, and spaces that stand alone.
function tokenNode({ text, kind }) {
  const node = document.createElement("span");
  node.className = `token ${kind}`;
  node.title = kind;
  text.split("\n").forEach((line, index) => {
    if (index) node.append(signNode("⏎"), "\n");
    node.append(/^ +$/.test(line) && ["corrected", "bonus"].includes(kind) ? signNode("␣".repeat(line.length)) : line);
  });
  return node;
}

function take(told) {
  const lane = lanes[told.lane];
  const group = document.createElement("span");
  group.className = "round";
  group.append(...told.tokens.map(tokenNode));
  if (told.tokens.length) $(`answer-${told.lane}`).append(group);
  if (!lane.tokens) lane.first = told.seconds;
  lane.tokens += told.tokens.length;
  lane.seconds = told.seconds;
  lane.rounds += told.rounds.length;
  lane.done = told.finish !== null;
  for (const round of told.rounds) {
    lane.kept += round.kept;
    if (told.lane !== "main" || round.looked_up) continue; // what was looked up is of no block's places
    for (let at = 0; at < round.reached; at++) {
      places[at] ??= { reached: 0, accepted: 0 };
      places[at].reached += 1;
      if (at < round.landed) places[at].accepted += 1;
    }
  }
  drawFigures(told);
  if (told.lane === "main") drawPlaces();
}

// Tokens a second after the first one, by the lane's own clock.
function speed(lane) {
  const seconds = lane.seconds - lane.first;
  return lane.tokens > 1 && seconds > 0 ? (lane.tokens - 1) / seconds : null;
}

function drawFigures(told) {
  const lane = lanes[told.lane];
  const ended = lane.done ? `, ended: ${told.finish}` : "";
  $(`count-${told.lane}`).textContent = `${lane.tokens} tokens in ${lane.rounds} rounds${ended}`;
  const [drafted, plain] = LANES.map((name) => speed(lanes[name]));
  $("speed-main").textContent = drafted ? drafted.toFixed(1) : "–";
  $("speed-plain").textContent = plain ? plain.toFixed(1) : "–";
  $("ratio").textContent = drafted && plain ? `${(drafted / plain).toFixed(2)}×` : "–";
  if (lanes.main.rounds) $("tau").textContent = (lanes.main.kept / lanes.main.rounds).toFixed(2);
  if (told.others) say(`${told.others} other answers are in the batch: the speeds are shared with them.`);
}

function drawPlaces() {
  const rows = places.map(({ reached, accepted }, at) => {
    const row = document.createElement("tr");
    const share = accepted / reached;
    const bar = document.createElement("meter");
    bar.value = share;
    bar.textContent = `${Math.round(100 * share)} %`;
    for (const cell of [String(at + 1), `${accepted} of ${reached}`, `${Math.round(100 * share)} %`, bar]) {
      row.insertCell().append(cell);
    }
    return row;
  });
  if (!rows.length) {
    const cell = rows[rows.push(document.createElement("tr")) - 1].insertCell();
    cell.colSpan = 4;
    cell.textContent = "No round yet.";
  }
  $("places").tBodies[0].replaceChildren(...rows);
}

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function complaint(response) {
  if (response.status === 401) $("keyfield").hidden = false;
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

async function answer() {
  const asked = {
    prompt: $("prompt").value,
    temperature: $("temperature").valueAsNumber,
    seed: $("seed").valueAsNumber,
    max_tokens: $("max").valueAsNumber,
    plain: $("plain").checked,
  };
  fresh();
  $("plainly").hidden = !asked.plain;
  say("Waiting for the first token…");
  const options = { method: "POST", headers: headers(), body: JSON.stringify(asked), signal: running.signal };
  const response = await fetch("answer", options);
  if (!response.ok) throw new Error(await complaint(response));
  let ended = false;
  for await (const told of events(response.body)) {
    if (told.error) throw new Error(told.error.message);
    if (told.end) {
      ended = true;
      finish(told.same);
    } else {
      if ($("status").textContent.startsWith("Waiting")) say("Answering…");
      take(told);
    }
  }
  if (!ended) throw new Error("the server broke the answer off");
}

function finish(same) {
  if (same === true) say("Done. Both answers are the same, token for token.");
  else if (same === false) say("Done. The two answers DIFFER.", true);
  else if (lanes.plain.tokens) say("Done. Sampled answers follow the same law, and are drawn differently.");
  else say("Done.");
}

async function submit(happened) {
  happened.preventDefault();
  if (running) return;
  running = new AbortController();
  $("run").disabled = true;
  $("stop").disabled = false;
  try {
    await answer();
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else say(error.message, true);
  } finally {
    running = null;
    $("run").disabled = false;
    $("stop").disabled = true;
  }
}

async function describe() {
  const response = await fetch("info", { headers: headers() });
  if (!response.ok) throw new Error(await complaint(response));
  const facts = await response.json();
  $("facts").textContent =
    `${facts.target}, drafter ${facts.drafter}, ${facts.dtype} on ${facts.device}, verifies ${facts.verify}`;
  $("max").max = facts.max_tokens;
  $("max").value = Math.min($("max").valueAsNumber || facts.max_tokens, facts.max_tokens);
}

$("ask").addEventListener("submit", submit);
$("stop").addEventListener("click", () => running?.abort());
$("key").addEventListener("change", () =>
  describe().then(() => running || say("")).catch((error) => say(error.message, true)),
);
$("prompt").addEventListener("keydown", (pressed) => {
  if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) $("ask").requestSubmit();
});
fresh();
describe().catch((error) => {
  $("facts").textContent = "";
  say(error.message, true);
});
