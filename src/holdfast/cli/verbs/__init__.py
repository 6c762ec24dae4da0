"""One file for each verb or family of verbs: parse the call, ask `jobs`, show the answer. No verb knows another."""
