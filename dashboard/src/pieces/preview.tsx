// A result as it looks best: text, a picture, sound or film from our own blob route, else JSON. Never as markup.
import { BASE } from "../router";
import type { Value } from "../views";
import { Json } from "./words";

const KINDS: [RegExp, string][] = [
  [/^image\/(png|jpeg|gif|webp|avif)$/, "image"],
  [/^audio\//, "audio"],
  [/^video\//, "video"],
];

interface BlobMark {
  media?: string;
  sha256: string;
  size: number;
}

/** The file that a value is; null for any other value. */
function blobOf(value: unknown): BlobMark | null {
  const one = Array.isArray(value) && value.length === 1 ? (value[0] as unknown) : value;
  const mark = one !== null && typeof one === "object" ? (one as { $blob?: BlobMark }).$blob : undefined;
  return mark && /^[0-9a-f]{64}$/.test(mark.sha256) && typeof mark.size === "number" ? mark : null;
}

export function Preview({ value }: { value: unknown }) {
  const blob = blobOf(value);
  if (!blob) return typeof value === "string" ? <div class="json plain-text">{value}</div> : <Json value={value} />;
  const kind = KINDS.find(([pattern]) => pattern.test(blob.media ?? ""))?.[1];
  const path = `${BASE}/api/v1/blobs/${blob.sha256}`;
  const shown = `${path}?media=${encodeURIComponent(blob.media ?? "")}`;
  return (
    <div class="preview">
      {kind === "image" && <img src={shown} alt="the file" loading="lazy" />}
      {kind === "audio" && <audio src={shown} controls preload="none" />}
      {kind === "video" && <video src={shown} controls preload="none" />}
      <a class="btn small" href={path} download data-plain>
        {`Save ${blob.media || "the file"}, ${blob.size.toLocaleString("en")} bytes`}
      </a>
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
