// Package membership decides who is in a cluster. In its present form it does
// the first step: genesis, in which a static list of initial members becomes
// one cluster, and never two (properties J2, J3).
//
// # Genesis
//
// Each initial member starts with an empty directory and a life nonce, 128
// random bits that name this life of the directory. Exactly one of them, the
// first by name, may found the cluster:
//
//	founder                          every other initial member
//	-------                          --------------------------
//	asks its own listed address: is it me?   (else it probes nobody)
//	probes all ───── probe{nonce} ──▶ asks the founder's listed address back,
//	                                  remembers the founder's nonce, syncs it
//	           ◀──── unconfigured ── answers{name, nonce, hash of its list}
//	all answered this round, same
//	lists, distinct nonces: makes the
//	genesis, syncs it, then
//	hands it on ──── offer ─────────▶ adopts it if it lists this life and comes
//	                                  from the founder that it answered last
//	           ◀──── ask ──────────── (who missed the offer asks, for ever)
//
// Silence never founds. A genesis names lives, not only names: a member whose
// disk was wiped has a new nonce, is not listed, and can neither vote nor found
// a rival; it reports ErrNotListed, because joining is not built yet.
//
// The awkward case is a founder that founded, handed its genesis to some, lost
// its disk and came back as a new life that probes the rest. Those remember the
// new life and would wait for it for ever. So a member that is shown a genesis
// of another founder than the one that it answered last shows it to that one; a
// life that sees a cluster in which it is not listed renounces founding for
// good, syncs that, and says so; then the member is free to adopt.
//
// # Who runs what
//
// Member is the pure part: messages in, answers and the next durable State out,
// no goroutine, clock, lock or I/O. Genesis drives it: one goroutine, started by
// Run's caller, asks in rounds; HandleCall answers from the transport's
// goroutines. Whatever an answer rests on is durable before the answer leaves.
package membership
