// A result as it looks best: text, a picture, sound or film from our own blob route, else JSON. Never as markup.
import { useEffect, useState } from "preact/hooks";
import { BASE } from "../router";
import type { Value } from "../views";
import { Json } from "./words";

/** What a browser shows without running anything of it. The server shows only these, too; anything else is saved. */
const KINDS: [RegExp, "image" | "audio" | "video" | "text"][] = [
  [/^image\/(png|jpeg|gif|webp|avif)$/, "image"],
  [/^audio\/[a-z0-9.+-]{1,60}$/, "audio"],
  [/^video\/[a-z0-9.+-]{1,60}$/, "video"],
  [/^(text\/(?!html)[a-z0-9.+-]{1,60}|application\/(json|yaml|x-ndjson))$/, "text"],
];
const HASH = /^[0-9a-f]{64}$/;
const DEPTH = 5;
const SHOWN = 12;
const TEXT_BYTES = 20_000;

/** A value or a file that is kept outside its record. */
export interface Mark {
  sha256: string;
  size: number;
  media: string;
  name: string;
}

export function markOf(value: unknown): Mark | null {
  const mark = value !== null && typeof value === "object" ? (value as { $blob?: Record<string, unknown> }).$blob : undefined;
  if (!mark || typeof mark.sha256 !== "string" || !HASH.test(mark.sha256)) return null;
  const text = (name: string) => (typeof mark[name] === "string" ? mark[name] : "");
  return { sha256: mark.sha256, size: Number(mark.size) || 0, media: text("media") || (mark.encoding === "json" ? "application/json" : ""), name: text("name") };
}

/** Where a blob is read: shown as its kind, or to be saved. */
export const blobPath = (mark: Mark, shown = false): string => `${BASE}/api/v1/blobs/${mark.sha256}${shown ? `?media=${encodeURIComponent(mark.media)}` : ""}`;

function marksIn(value: unknown, depth = DEPTH): Mark[] {
  const mark = markOf(value);
  if (mark) return [mark];
  return depth && value !== null && typeof value === "object" ? Object.values(value).flatMap((one) => marksIn(one, depth - 1)) : [];
}

/** The beginning of a text, read when it is seen. */
function TextOf({ mark }: { mark: Mark }) {
  const [text, setText] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    void begun(mark, stop.signal).then(setText, () => undefined);
    return () => stop.abort();
  }, [mark.sha256]);
  return text ? <div class="json plain-text">{text}</div> : null;
}

async function begun(mark: Mark, signal: AbortSignal): Promise<string> {
  const answer = await fetch(blobPath(mark), { signal });
  const reader = answer.ok ? answer.body?.getReader() : undefined;
  const decoder = new TextDecoder();
  let text = "";
  while (reader && text.length < TEXT_BYTES) {
    const { done, value } = await reader.read();
    if (done) return text;
    text += decoder.decode(value, { stream: true });
  }
  void reader?.cancel();
  return text && `${text.slice(0, TEXT_BYTES)}…`;
}

function Blob({ mark }: { mark: Mark }) {
  const kind = KINDS.find(([pattern]) => pattern.test(mark.media))?.[1];
  const name = mark.name || mark.media || "a file";
  const [lost, setLost] = useState(false);
  const shown = { src: blobPath(mark, true), onError: () => setLost(true) };
  return (
    <div class="preview">
      {lost && <p class="muted">{`${name} can't be shown here. It may no longer be stored.`}</p>}
      {!lost && kind === "image" && <img {...shown} alt={name} loading="lazy" />}
      {!lost && kind === "audio" && <audio {...shown} aria-label={name} controls preload="none" />}
      {!lost && kind === "video" && <video {...shown} aria-label={name} controls preload="none" />}
      {kind === "text" && <TextOf mark={mark} />}
      <a class="btn small" href={blobPath(mark)} download={mark.name || mark.sha256.slice(0, 12)} data-plain>
        {`Save ${name}, ${mark.size.toLocaleString("en")} bytes`}
      </a>
    </div>
  );
}

export function Preview({ value }: { value: unknown }) {
  const only = markOf(value);
  if (only) return <Blob mark={only} />;
  const marks = marksIn(value);
  const shown = typeof value === "string" ? <div class="json plain-text">{value}</div> : <Json value={value} />;
  if (!marks.length) return shown;
  return (
    <div class="previews">
      {shown}
      {marks.slice(0, SHOWN).map((one, i) => (
        <Blob key={i + one.sha256} mark={one} />
      ))}
    </div>
  );
}

/** A stored value: whole if it is small, else its beginning, with a link to all of it. */
export function ValueShown({ of, whole }: { of: Value; whole?: string }) {
  if (of.is_whole) return <Preview value={of.json} />;
  return (
    <div class="preview">
      <div class="json plain-text">{`${of.text}…`}</div>
      {whole && (
        <a class="btn small" href={`${BASE}${whole}`} data-plain target="_blank" rel="noopener">
          {`All of it, ${of.bytes.toLocaleString("en")} bytes`}
        </a>
      )}
    </div>
  );
}
