// The login page: a token becomes a cookie that scripts can't read.
import { useState } from "preact/hooks";
import { BASE, place } from "../router";
import { Mark } from "../pieces/glyph";

export function Login() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const send = async () => {
    setProblem("");
    const answer = await fetch(`${BASE}/login`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: token.trim() }) }).catch(() => null);
    if (answer?.ok) {
      const next = place.value.query.get("next") ?? "";
      // Only a path of this server: an address from elsewhere must not receive who just logged in.
      return location.assign(/^\/(?![/\\])/.test(next) ? next : `${BASE}/`);
    }
    const data = (await answer?.json().catch(() => null)) as { detail?: string } | null;
    setProblem(data?.detail ?? (answer ? "This token isn't accepted. Make one with: holdfast token create NAME" : "The server can't be reached."));
  };
  return (
    <main id="main" class="login" tabIndex={-1}>
      <form onSubmit={(event) => (event.preventDefault(), void send())}>
        <p class="brand">
          <Mark /> Holdfast
        </p>
        <h1 class="sentence">Log in with a token.</h1>
        <label>
          Token
          <input type="password" autocomplete="current-password" required value={token} aria-invalid={problem ? true : undefined} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        {problem && (
          <p class="error" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="btn main">
          Log in
        </button>
        <p class="faint">
          Make a token where the store is: <span class="mono">holdfast token create NAME --scope read</span>
        </p>
      </form>
    </main>
  );
}
