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
  blob: string;
  type?: string;
  size?: number;
  name?: string;
}

const blobOf = (value: unknown): BlobMark | null =>
  value !== null && typeof value === "object" && typeof (value as BlobMark).blob === "string" && (value as BlobMark).blob.startsWith("/api/v1/blobs/") ? (value as BlobMark) : null;

export function Preview({ value }: { value: unknown }) {
  const blob = blobOf(value);
  if (!blob) return typeof value === "string" ? <div class="json plain-text">{value}</div> : <Json value={value} />;
  const kind = KINDS.find(([pattern]) => pattern.test(blob.type ?? ""))?.[1];
  return (
    <div class="preview">
      {kind === "image" && <img src={`${BASE}${blob.blob}`} alt={blob.name ?? "the result"} loading="lazy" />}
      {kind === "audio" && <audio src={`${BASE}${blob.blob}`} controls preload="none" />}
      {kind === "video" && <video src={`${BASE}${blob.blob}`} controls preload="none" />}
      <a class="btn small" href={`${BASE}${blob.blob}`} download data-plain>
        {`Save ${blob.name ?? blob.type ?? "the file"}`}
      </a>
    </div>
  );
}

/** A value that is kept outside its record because it is large; null for any other. */
function largeOf(value: unknown): { media?: string; size: number } | null {
  const one = Array.isArray(value) && value.length === 1 ? (value[0] as unknown) : value;
  const mark = one !== null && typeof one === "object" ? (one as { $blob?: { media?: string; size?: number } }).$blob : undefined;
  return mark && typeof mark.size === "number" ? { media: mark.media, size: mark.size } : null;
}

/** A stored value: whole if it is small, else its beginning, with a link to all of it. */
export function ValueShown({ of, whole }: { of: Value; whole?: string }) {
  const large = of.is_whole ? largeOf(of.json) : null;
  if (large) return <p class="muted">{`${large.media ?? "A large value"}, ${large.size.toLocaleString("en")} bytes`}</p>;
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
