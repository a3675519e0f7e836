package engine

import "github.com/lukv/lukv/model"

// store keeps sessions of prompts that were read, the least used to go first.
type store struct {
	limit, bytes int64
	entries      []*entry // the most recently used last
}

// entry is a session that has read a prompt. It serves every prompt that begins with
// the same tokens, up to where they differ; a compressed one only prompts with exactly
// its context, since what was evicted depends on all of it.
type entry struct {
	key     string // what decides the bits, beside the tokens
	context int    // tokens that were compressed
	tokens  []int32
	session *model.Session
	bytes   int64
}

// leastShared is the number of tokens from which on a prefix is worth its fork.
const leastShared = 16

// key names everything but the tokens that decides a cache's bits: the model, its
// precision and the cache's type are the same for the whole engine.
func (j *job) key() string {
	policy := ""
	if p := j.session.Policy(); p != nil && j.req.Context > 0 {
		policy = p.String()
	}
	return j.req.Salt + "\x00" + policy
}

// find returns a session that has read the longest beginning of the request's prompt
// that is kept, and how much that is; nil if there is none worth it. It belongs to the
// caller.
func (st *store) find(j *job) (*model.Session, int) {
	key := j.key()
	prompt := j.req.Prompt
	var best *entry
	at, shared := 0, 0
	for i, en := range st.entries {
		if en.key != key || en.context != j.req.Context {
			continue
		}
		n := common(en.tokens, prompt)
		if n < en.context {
			continue
		}
		if j.req.Echo {
			n = min(n, j.req.Context) // logits are wanted of everything behind it
		}
		if n == len(prompt) && !j.req.PromptOnly && (n < len(en.tokens) || en.session.Logits() == nil) {
			n-- // the last token gives the logits
		}
		if n >= max(en.context, leastShared) && n > shared {
			best, at, shared = en, i, n
		}
	}
	if best == nil {
		return nil, 0
	}
	s, err := best.session.Fork()
	if err != nil {
		return nil, 0
	}
	if shared < len(best.tokens) {
		if err := s.Truncate(shared); err != nil { // windows and renumbered positions
			s.Close()
			return nil, 0
		}
	}
	copy(st.entries[at:], st.entries[at+1:])
	st.entries[len(st.entries)-1] = best
	return s, shared
}

// common returns how many tokens a and b begin with alike.
func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// keep takes a fork of the session of a request whose prompt is read, if it fits into
// room and limit. What compresses while decoding is not kept: its state depends on
// what was a prompt and what an answer.
func (st *store) keep(j *job, room int64) {
	bytes := j.session.Stats().CacheBytes
	if bytes > min(st.limit, room) || len(j.req.Prompt) < leastShared || j.cached == len(j.req.Prompt) {
		return
	}
	if p := j.req.Policy; p != nil && p.Decode.Enabled() {
		return
	}
	s, err := j.session.Fork()
	if err != nil {
		return
	}
	en := &entry{key: j.key(), context: j.req.Context, tokens: j.req.Prompt, session: s, bytes: bytes}
	// A beginning of this prompt has nothing that this has not.
	for i := len(st.entries) - 1; i >= 0; i-- {
		old := st.entries[i]
		if old.key == en.key && old.context == en.context && common(old.tokens, en.tokens) == len(old.tokens) {
			st.remove(i)
		}
	}
	st.entries = append(st.entries, en)
	st.bytes += bytes
	st.shrink(min(st.limit, room))
}

// shrink forgets until what is kept takes at most n bytes.
func (st *store) shrink(n int64) {
	for len(st.entries) > 0 && st.bytes > n {
		st.remove(0)
	}
}

func (st *store) remove(i int) {
	en := st.entries[i]
	en.session.Close()
	st.bytes -= en.bytes
	st.entries = append(st.entries[:i], st.entries[i+1:]...)
}

func (st *store) close() { st.shrink(-1); st.entries = nil }
