// A card with a title, and the small parts that every page uses.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { useKey } from "./use-key";

export function Card({ title, note, right, children, class: more = "", id }: { title?: ComponentChildren; note?: ComponentChildren; right?: ComponentChildren; children: ComponentChildren; class?: string; id?: string }) {
  return (
    <section class={`card ${more}`} id={id} aria-label={typeof title === "string" ? title : undefined}>
      {(title || right) && (
        <header>
          {typeof title === "string" ? <h2>{title}</h2> : title}
          {note && <span class="note">{note}</span>}
          {right && <div class="right">{right}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Key({ is }: { is: string }) {
  return (
    <span class="keys" aria-hidden="true">
      {is.split(" ").map((one) => (
        <kbd key={one}>{one}</kbd>
      ))}
    </span>
  );
}

export function Button({ children, onClick, keys, main, small, disabled, label, ...more }: { children: ComponentChildren; onClick?: (event: MouseEvent) => void; keys?: string; main?: boolean; small?: boolean; disabled?: boolean; label?: string; type?: "submit" | "button" }) {
  const button = useRef<HTMLButtonElement>(null);
  useKey(keys, () => button.current?.click());
  return (
    <button ref={button} type={more.type ?? "button"} class={`btn${main ? " main" : ""}${small ? " small" : ""}`} onClick={onClick} disabled={disabled} aria-label={label}>
      {children}
      {keys && <Key is={keys} />}
    </button>
  );
}

export function Pairs({ of }: { of: { name: string; text: string; mono?: boolean }[] }) {
  return (
    <dl class="pairs-list">
      {of.map((one) => (
        <div key={one.name}>
          <dt>{one.name}</dt>
          <dd class={one.mono ? "mono" : undefined}>{one.text}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Loading() {
  return <div class="loading" role="status" aria-label="Loading" />;
}
