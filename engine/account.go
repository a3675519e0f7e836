package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/sampling"
)

// Account bounds the memory that requests take besides KV caches. Engines take from it from
// Submit to a request's end, and servers for what they hold around that; all that share an
// Account share its bound. It is safe for concurrent use.
type Account struct {
	limit int64
	used  atomic.Int64
}

// NewAccount returns an account of limit bytes.
func NewAccount(limit int64) *Account { return &Account{limit: max(0, limit)} }

// ProcessAccount returns the account of all engines and servers that are given none: a
// quarter of the memory that the system can give when it is first asked for, or 1 GiB where
// that is unknown, but at least 64 MiB.
var ProcessAccount = sync.OnceValue(func() *Account {
	if n := sysmem.Available(); n > 0 {
		return NewAccount(max(n/4, 64<<20))
	}
	return NewAccount(1 << 30)
})

// Limit returns the bound, Used the bytes that are taken.
func (a *Account) Limit() int64 { return a.limit }
func (a *Account) Used() int64  { return a.used.Load() }

// MemoryError says that the memory for requests in progress is taken. If InUse is 0, the
// request alone needs too much; otherwise it can be tried again later.
type MemoryError struct {
	Needed, InUse, Limit int64 // bytes besides KV caches
}

func (e *MemoryError) Error() string {
	if e.InUse == 0 {
		return fmt.Sprintf("needs up to %d bytes of memory besides its KV cache, the limit is %d", e.Needed, e.Limit)
	}
	return fmt.Sprintf("needs up to %d bytes of memory besides its KV cache: requests in progress have %d of %d", e.Needed, e.InUse, e.Limit)
}

// Take takes n bytes; the error, a [MemoryError], says that there are not as many.
func (a *Account) Take(n int64) error {
	if n > a.limit {
		return &MemoryError{Needed: n, Limit: a.limit}
	}
	for {
		used := a.used.Load()
		if n > a.limit-used {
			return &MemoryError{Needed: n, InUse: used, Limit: a.limit}
		}
		if a.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

// Give gives n bytes back.
func (a *Account) Give(n int64) { a.used.Add(-n) }

const (
	samplerBytes = 16 // for a token of the vocabulary, see sampling.Sampler
	logitBytes   = 4
	tokenBytes   = 4
	textBytes    = 16 // for the text of a token, in an answer that is being built
	probBytes    = int64(unsafe.Sizeof(sampling.TokenProb{}))
	eventBytes   = int64(unsafe.Sizeof(Event{}))
)

// memory returns the most memory that the request takes besides its cache: its prompt, the
// stop texts, unread events and, for each choice, the answer, its text, the logits of its
// session, those after drafts, and a sampler.
func (j *job) memory() int64 {
	r, vocab := &j.req, int64(j.e.m.Config().Vocab)
	event := eventBytes + probBytes*int64(r.Sampling.TopLogProbs) + textBytes
	rows := int64(1 + j.mostDrafts())
	if j.req.Draft != nil { // the copy's own, and after the draft that it has not taken
		rows += 2
	}
	choice := int64(j.answerTokens)*(tokenBytes+textBytes) + vocab*(samplerBytes+rows*logitBytes)
	// The session has the tokens of the prompt, too.
	return 2*tokenBytes*int64(len(r.Prompt)) + j.stops.Bytes() + int64(j.events())*event + int64(r.Choices)*choice
}

// events returns the most events of the request that may be unread.
func (j *job) events() int {
	return streamRoom + echoRows + 2 + (1+max(model.MaxDrafts, j.mostDrafts()))*j.req.Choices
}
