// A key that a button shows does what the button does.
import { useEffect, useRef } from "preact/hooks";

/** Call `run` when this key is pressed, as long as the caller is shown. Nothing for keys that only name a combination. */
export function useKey(key: string | undefined, run: () => void): void {
  const latest = useRef(run);
  latest.current = run;
  const name = key?.length === 1 ? key.toLowerCase() : "";
  useEffect(() => {
    if (!name) return;
    const hear = (event: Event) => (event as CustomEvent<string>).detail === name && latest.current();
    document.addEventListener("holdfast:key", hear);
    return () => document.removeEventListener("holdfast:key", hear);
  }, [name]);
}
