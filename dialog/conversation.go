package dialog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Conversation is a chat and the session that holds as much of it as the model
// has read. The prompt of each turn is rendered anew from all messages; only
// what goes beyond the longest prefix that the session holds is fed. It
// belongs to one goroutine at a time.
type Conversation struct {
	State

	// Session holds the options of future sessions. Their policy compresses the
	// document, before any question is known, and leaves the system prompt before
	// it intact where it can, see [Protected]; without a document no part of the
	// prompt is compressed. Call [Conversation.Reread] after a change.
	Session model.SessionOptions

	// KeepTurns, if more than 0, makes the policy of Session also compress what was
	// said before the last KeepTurns turns of question and answer: each time a turn
	// becomes older than that, before the next message is read.
	KeepTurns int

	// MaxLoss, if not nil, chooses the ratio for a document: the largest that loses at most
	// this share of its facts. MeasureLoss measures what a ratio or budget loses. Loss is
	// the result for the document in the session, nil if it was not asked for.
	MaxLoss     *float64
	MeasureLoss bool
	Loss        *model.Loss

	// Exact keeps the whole document, so that answers are those of the whole cache to the
	// bit: a copy that the policy compresses only drafts, Drafts tokens for each pass (0: as
	// many as pay), see [model.Session.DraftCompressed]. Older turns are not compressed.
	Exact  bool
	Drafts int

	// Sampling and Stop apply to future answers.
	Sampling model.Sampling
	Stop     []string

	// Progress, if not nil, is called from time to time while a prompt is read,
	// with the number of tokens done and the number to do.
	Progress func(done, total int)

	m      *model.Model
	format *Format

	s *model.Session // nil: nothing read yet
	// head is the beginning of the prompt up to the end of the document, which the
	// session has read on its own and compressed; its tokens are always headTokens,
	// whatever a tokenizer would make of it together with the text that follows.
	head       string
	headTokens []int32

	reading int // tokens of the prefill in progress
}

// State holds the messages and the document: all of a conversation but its session.
type State struct {
	System   string         `json:"system,omitempty"`
	Document string         `json:"document,omitempty"` // before the first message
	Messages []*chat.Object `json:"messages"`
}

// NewConversation begins a conversation in a format of the model. The caller
// closes it.
func NewConversation(m *model.Model, f *Format) *Conversation {
	return &Conversation{m: m, format: f}
}

// Close drops the session. Closing twice is fine.
func (c *Conversation) Close() { c.Forget() }

// Forget drops the session; the next turn begins a new one, which reads
// everything again.
func (c *Conversation) Forget() {
	if c.s != nil {
		c.s.Close()
	}
	c.s, c.head, c.headTokens = nil, "", nil
}

// Held returns the session, nil if nothing has been read yet. It still belongs
// to the conversation.
func (c *Conversation) Held() *model.Session { return c.s }

// DocumentTokens returns the number of the session's tokens up to the end
// of the document; 0 without a document.
func (c *Conversation) DocumentTokens() int { return len(c.headTokens) }

// All returns the messages as the template gets them: the system prompt first,
// the document as the beginning of the user's first message.
func (c *Conversation) All(messages []*chat.Object) []*chat.Object {
	out := c.before()
	for i, m := range messages {
		if i == 0 && c.Document != "" {
			content, _ := m.Get("content")
			m = chat.NewMessage("user", inFront(c.Document, content))
		}
		out = append(out, m)
	}
	return out
}

// before returns the messages before the user's first.
func (c *Conversation) before() []*chat.Object {
	if c.System == "" {
		return nil
	}
	return []*chat.Object{chat.NewMessage("system", c.System)}
}

// Prompt returns the prompt for messages of this conversation, system prompt and
// document included.
func (c *Conversation) Prompt(ctx context.Context, messages []*chat.Object) (chat.Prompt, error) {
	return c.format.render(ctx, c.All(messages))
}

// begin starts a session that has read head, which is compressed.
func (c *Conversation) begin(ctx context.Context, head chat.Prompt) error {
	c.Forget()
	o := c.Session
	if p := o.Compression; p != nil && c.Document == "" {
		decode := *p
		decode.Ratio, decode.BudgetTokens, decode.BudgetBytes = 0, 0, 0
		if o.Compression = &decode; !decode.Enabled() {
			o = o.WithoutCompression()
		}
	}
	o.Progress = func(done, total int) {
		if c.Progress != nil && total > 0 {
			c.Progress(int(int64(c.reading)*int64(done)/int64(total)), c.reading)
		}
	}
	tokens, err := Encode(ctx, c.format.tok, head, c.limit())
	if err != nil {
		return err
	}
	protected := 0
	if c.Document != "" {
		front := c.format.front(head, len(head.Text)-len(c.Document))
		if c.System != "" || len(front) >= LeastFront {
			protected = Protected(c.m, o.Compression, front, tokens)
		}
	}
	c.reading = len(tokens)
	s, err := c.readContext(ctx, o, tokens, protected)
	if err != nil {
		return err
	}
	c.s, c.head, c.headTokens = s, head.Text, tokens
	return nil
}

// readContext reads the beginning of a prompt and compresses the document in it.
func (c *Conversation) readContext(ctx context.Context, o model.SessionOptions, tokens []int32, protected int) (*model.Session, error) {
	c.Loss = nil
	document := c.Document != "" && o.Compression != nil
	if document && c.MaxLoss != nil {
		s, loss, err := ReadContextWithin(ctx, c.m, o, tokens, protected, *c.MaxLoss)
		c.Loss = &loss
		return s, err
	}
	if document && c.Exact {
		return ReadContextExact(ctx, c.m, o, tokens, protected, c.Drafts)
	}
	measured := document && c.MeasureLoss
	if measured {
		o.ProbeLoss = new(model.LossOptions)
	}
	s, err := ReadContext(ctx, c.m, o, tokens, protected)
	if err != nil || !measured {
		return s, err
	}
	loss, err := Loss(ctx, s, protected)
	if err != nil {
		s.Close()
		return nil, err
	}
	c.Loss = &loss
	return s, nil
}

// ReadDocument begins a conversation about a text. After an error the
// conversation is what it was, except for its session.
func (c *Conversation) ReadDocument(ctx context.Context, text string) error {
	// Templates strip messages; this way the document ends where it is looked for.
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if text == "" {
		return errors.New("the document is empty")
	}
	old := c.State
	c.State = State{System: c.System, Document: text}
	if err := c.Reread(ctx); err != nil {
		c.State = old
		return err
	}
	return nil
}

// Reread reads the document, if there is one, into a new session.
func (c *Conversation) Reread(ctx context.Context) error {
	c.Forget()
	if c.Document == "" {
		return nil
	}
	head, err := c.format.head(ctx, c.before(), c.Document)
	if err != nil {
		return err
	}
	return c.begin(ctx, head)
}

// Clear drops the messages. The document stays, compressed as it is; what was said
// about it is removed from the cache.
func (c *Conversation) Clear(ctx context.Context) error {
	c.Messages = nil
	if c.s == nil || c.Document == "" {
		c.Forget()
		return nil
	}
	if err := c.s.Truncate(len(c.headTokens)); err != nil {
		return c.Reread(ctx)
	}
	return nil
}

// feed makes the session hold exactly the prompt, whose first message is first.
func (c *Conversation) feed(ctx context.Context, prompt chat.Prompt, first *chat.Object) error {
	var head chat.Prompt
	if c.Document != "" {
		content, _ := first.Get("content")
		i := place(prompt, c.Document, inFront(c.Document, content))
		if i < 0 {
			return errors.New("the chat template changes the document's text: it cannot be read before the question")
		}
		head = prompt.Slice(0, i+len(c.Document))
	}
	// Some templates put a system prompt or tools after the document once there
	// are further messages: then it has to be read again.
	if c.s == nil || head.Text != c.head {
		if err := c.begin(ctx, head); err != nil {
			return err
		}
	}
	ids, err := c.encode(ctx, prompt)
	if err != nil {
		return err
	}
	held := c.s.Tokens()
	n := common(held, ids)
	if n == len(ids) {
		n-- // the last token gives the logits
	}
	if n < max(len(c.headTokens), c.s.Stats().ContextTokens) || c.s.Truncate(n) != nil {
		// Compressed tokens, sliding windows and renumbered positions cannot be rolled
		// back.
		if err := c.begin(ctx, head); err != nil {
			return err
		}
		n = len(c.headTokens)
	}
	older, err := c.olderTurns(ctx, prompt, ids)
	if err != nil {
		return err
	}
	c.reading = len(ids) - n
	if older.To > n { // of a new session
		if err := c.s.Prefill(ctx, ids[n:older.To]); err != nil {
			return err
		}
		n = older.To
	}
	if older.To > older.From {
		if err := c.s.Compress(ctx, older, c.turnPolicy()); err != nil {
			return fmt.Errorf("older turns: %w", err)
		}
	}
	return c.s.Prefill(ctx, ids[n:])
}

// turnPolicy returns the policy for older turns, nil without one.
func (c *Conversation) turnPolicy() *lukv.Policy {
	p := c.Session.Compression
	if p == nil || c.KeepTurns <= 0 || c.Exact {
		return nil
	}
	turns := *p
	turns.Decode = lukv.DecodeConfig{}
	return &turns
}

// olderTurns returns the tokens of turns that have become older than KeepTurns and are
// not compressed yet: from the text of the first message, or the end of what is
// compressed, to the point where the prompt of the older messages alone would diverge.
func (c *Conversation) olderTurns(ctx context.Context, prompt chat.Prompt, ids []int32) (model.Span, error) {
	n := len(c.Messages)/2 - c.KeepTurns
	if c.turnPolicy() == nil || n <= 0 {
		return model.Span{}, nil
	}
	older, err := c.Prompt(ctx, c.Messages[:2*n])
	if err != nil {
		return model.Span{}, err
	}
	end := common([]byte(prompt.Text), []byte(older.Text))
	if end <= len(c.head) {
		return model.Span{}, nil
	}
	tokens, err := c.encode(ctx, prompt.Slice(0, end))
	if err != nil {
		return model.Span{}, err
	}
	from := max(len(c.headTokens), c.s.Stats().ContextTokens)
	if c.Document == "" {
		from = max(from, common(c.format.front(prompt, c.firstText(prompt)), ids))
	}
	return model.Span{From: from, To: common(tokens, ids)}, nil
}

// firstText returns where the text of the first message begins in a prompt, 0 if the
// template has changed it.
func (c *Conversation) firstText(prompt chat.Prompt) int {
	content, _ := c.Messages[0].Get("content")
	system, start := strings.TrimSpace(c.System), 0
	if i := strings.Index(prompt.Text, system); i >= 0 {
		start = i + len(system)
	}
	i := strings.Index(prompt.Text[start:], strings.TrimSpace(fmt.Sprint(content)))
	if i < 0 {
		return 0
	}
	return start + i
}

// encode returns the tokens of a prompt that begins with the head.
func (c *Conversation) encode(ctx context.Context, prompt chat.Prompt) ([]int32, error) {
	head := c.headTokens[:len(c.headTokens):len(c.headTokens)]
	ids, err := Encode(ctx, c.format.tok, prompt.Slice(len(c.head), len(prompt.Text)), c.limit())
	return append(head, ids...), err
}

// limit returns the number of tokens that a session takes.
func (c *Conversation) limit() int {
	if n := c.Session.MaxTokens; n > 0 {
		return n
	}
	return c.m.Config().MaxPositions
}

// Turn counts the tokens of a question and its answer, and their time.
type Turn struct {
	Read int // tokens of the prompt that were fed
	Held int // tokens that the session held after that
	New  int // tokens of the answer

	ReadTime, AnswerTime time.Duration

	NoSystem bool // the template leaves the system prompt out
}

// Ask sends a message and calls each with the pieces of the answer as they
// come. Message and answer become part of the conversation. An answer
// interrupted by ctx stays in it as far as it got; a message that could not be
// read does not. An error from each ends the answer and is returned.
func (c *Conversation) Ask(ctx context.Context, text string, each func(text string) error) (Turn, error) {
	var turn Turn
	messages := append(c.Messages[:len(c.Messages):len(c.Messages)], chat.NewMessage("user", text))
	prompt, err := c.Prompt(ctx, messages)
	if err != nil {
		return turn, err
	}
	turn.NoSystem = !strings.Contains(prompt.Text, strings.TrimSpace(c.System))
	stops, err := NewStops(c.Stop)
	if err != nil {
		return turn, err
	}
	start, before := time.Now(), 0
	if c.s != nil {
		before = c.s.Stats().Tokens
	}
	s := c.s
	if err := c.feed(ctx, prompt, messages[0]); err != nil {
		return turn, err
	}
	if s != c.s {
		before = 0
	}
	turn.Held, turn.Read, turn.ReadTime = c.s.Len(), c.s.Stats().Tokens-before, time.Since(start)

	start = time.Now()
	answer := NewAnswer(c.format.tok, stops)
	err = c.answer(ctx, answer, each, &turn.New)
	turn.AnswerTime = time.Since(start)
	if err == nil || ctx.Err() != nil {
		c.Messages = append(messages, chat.NewMessage("assistant", answer.Text()))
	}
	return turn, err
}

// answer generates until the end of the answer, and counts its tokens in n.
func (c *Conversation) answer(ctx context.Context, a *Answer, each func(string) error, n *int) error {
	give := func(text string) error {
		if text == "" {
			return nil
		}
		return each(text)
	}
	var failed error
	for t, err := range c.s.Generate(ctx, c.Sampling) {
		if err != nil {
			failed = err
			break
		}
		*n++
		text, stopped := a.Token(t.ID)
		if err := give(text); err != nil {
			return err // no one is reading any more
		}
		if stopped {
			break
		}
	}
	return errors.Join(failed, give(a.End()))
}
