package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/internal/evidence"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

type runCmd struct {
	modelFlags
	verifyFlag
	Prompt string `arg:"" optional:"" help:"Question (default: standard input)."`

	Context      []string `short:"c" sep:"none" placeholder:"FILE" help:"Put this text before the prompt; it can be compressed. - is standard input. May be repeated."`
	System       string   `short:"s" placeholder:"TEXT" help:"Set the system prompt, which precedes the context and is never evicted."`
	AnswerPrefix string   `placeholder:"TEXT" help:"Start the answer with TEXT; the model continues it."`
	Raw          bool     `help:"Do not apply the chat template: use context and prompt unchanged, including control tokens, concatenated."`
	Save         string   `placeholder:"FILE" help:"Save the context's cache, without the prompt; - is standard output. The prompt is then optional."`
	Load         string   `placeholder:"FILE" help:"Start with a saved context instead of --context."`
	Trace        string   `placeholder:"FILE" help:"Write the entries that each head kept and lost, with scores and budgets, as a safetensors file."`
	Lookup       bool     `help:"Compute several tokens at once where the answer quotes context, prompt or itself; the answer is the same."`
	HugePages    bool     `help:"Keep the cache in the system's large pages (Linux), which speeds up long contexts. Not with compression, which frees small pieces of memory."`
	Stats        bool     `help:"Print tokens, times and cache sizes on standard error."`
	JSON         bool     `help:"Print one JSON object with answer and statistics instead of the text."`
	Logprobs     int      `placeholder:"N" help:"With --json: print the answer's tokens with log-probabilities and the N most likely alternatives of each."`

	policyFlags
	exactFlags
	samplingFlags
}

func (runCmd) Help() string {
	return `The context is prefilled and compressed before the prompt is known; system prompt, prompt and answer are never evicted. The answer is streamed. A policy that compresses while decoding, renumbers positions or uses the queries of all tokens also compresses the system prompt, with a note.

Examples:

  lukv run builtin --context notes.txt "Where does Rupert work?"

  lukv run DIR -c book.txt --ratio 0.8 --stats "Who is the narrator?"

  lukv run DIR -c book.txt --ratio 0.8 --allocator lukv --profile dir.profile "Who is the narrator?"

  lukv run DIR --system "Answer in one sentence." -c book.txt --ratio 0.8 "Who is the narrator?"

  lukv run DIR -c book.txt --ratio 0.8 --save book.session

  lukv run DIR --load book.session "How does it end?"

  lukv run DIR -c book.txt --ratio 0.8 --trace book.trace "Who is the narrator?"

  lukv run DIR -c book.txt --max-loss 0.1 "Who is the narrator?"

  lukv run DIR -c book.txt --ratio 0.8 --measure-loss "Who is the narrator?"

  lukv run DIR -c contract.txt --lookup --stats "Quote the clauses about notice."

  lukv run DIR -c book.txt --ratio 0.9 --exact --stats "Who is the narrator?"`
}

// runResult is printed by run --json.
type runResult struct {
	Model  string             `json:"model"`
	Answer string             `json:"answer"`
	Finish model.FinishReason `json:"finish,omitempty"` // "stop" or "length"; "" if only saved
	Tokens []runToken         `json:"tokens,omitempty"`
	Stats  runStats           `json:"stats"`
	Loss   *model.Loss        `json:"loss,omitempty"` // of the context's facts
	Policy *lukv.Policy       `json:"policy,omitempty"`

	// Evidence is what the policy lost where it was measured, or that it was not.
	Evidence string `json:"evidence,omitempty"`

	Sample *samplingInfo `json:"sampling,omitempty"`
}

// samplingInfo is how tokens were drawn, with every parameter.
type samplingInfo struct {
	Temperature       float64  `json:"temperature"`
	TopK              int      `json:"top_k"`
	TopP              float64  `json:"top_p"`
	MinP              float64  `json:"min_p"`
	RepetitionPenalty float64  `json:"repetition_penalty"`
	Seed              uint64   `json:"seed"`
	MaxTokens         int      `json:"max_tokens"`
	Stop              []string `json:"stop"`
}

func describeSampling(s model.Sampling, stop []string) *samplingInfo {
	return &samplingInfo{
		Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP,
		RepetitionPenalty: s.RepetitionPenalty, Seed: s.Seed, MaxTokens: s.MaxTokens, Stop: append([]string{}, stop...),
	}
}

type runToken struct {
	ID      int32      `json:"id"`
	Text    string     `json:"text"`
	LogProb float64    `json:"logprob"`
	Top     []runToken `json:"top,omitempty"`
}

// runStats are the statistics of run. Times are in milliseconds.
type runStats struct {
	ContextTokens int     `json:"context_tokens"`
	PromptTokens  int     `json:"prompt_tokens"`
	NewTokens     int     `json:"new_tokens"`
	LoadMS        float64 `json:"load_ms"`
	ContextMS     float64 `json:"context_ms"` // scoring and evicting included
	ScoreMS       float64 `json:"score_ms"`
	EvictMS       float64 `json:"evict_ms"`
	PromptMS      float64 `json:"prompt_ms"`
	DecodeMS      float64 `json:"decode_ms"`
	ContextRate   float64 `json:"context_tokens_per_second"`
	DecodeRate    float64 `json:"decode_tokens_per_second"`
	Drafted       int     `json:"drafted_tokens"`  // with --lookup or --exact
	Accepted      int     `json:"accepted_tokens"` // of these, the right ones
	Verified      int     `json:"verification_passes"`
	DraftBytes    int64   `json:"draft_cache_bytes"` // beside the cache, with --exact

	FullBytes       int64     `json:"cache_full_bytes"`       // of the context, uncompressed
	CompressedBytes int64     `json:"cache_compressed_bytes"` // of the context as it is
	PeakBytes       int64     `json:"cache_peak_bytes"`       // while the context was read
	FinalBytes      int64     `json:"cache_final_bytes"`      // with prompt and answer
	Ratio           float64   `json:"ratio_achieved"`
	LayerRatios     []float64 `json:"ratio_by_layer"`
	LayerBytes      []int64   `json:"bytes_by_layer"` // keys and values of the entries kept
	Entries         int64     `json:"entries_kept"`
	FullEntries     int64     `json:"entries_full"`

	Precision model.Precision `json:"precision"`
	Threads   int             `json:"threads"`
	CPU       string          `json:"cpu"`

	Device       string `json:"device,omitempty"` // accelerator, "" if none
	DeviceLayers int    `json:"device_layers,omitempty"`
}

// runner is one execution of run.
type runner struct {
	*runCmd
	e       *env
	m       *model.Model
	tok     *tokenizer.Tokenizer
	framing dialog.Framing
	result  runResult
	trace   *model.Trace // grows while decoding
}

func (c *runCmd) Run(e *env) error {
	if err := c.check(); err != nil {
		return err
	}
	start := time.Now()
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.verify(e, m); err != nil {
		return err
	}
	r := &runner{runCmd: c, e: e, m: m}
	r.result.Stats = runStats{
		LoadMS: ms(time.Since(start)), Precision: m.Precision(), Threads: m.Threads(), CPU: m.CPU().String(),
	}
	if dev := m.Device(); dev != nil {
		r.result.Stats.Device, r.result.Stats.DeviceLayers = dev.Info().Name, m.DeviceLayers()
	}
	if r.tok, err = m.Tokenizer(); err != nil {
		return err
	}
	if r.framing, err = r.frame(); err != nil {
		return err
	}
	return r.run()
}

func (c *runCmd) outputs() []string { return []string{c.Save, c.Trace} }

// check reports flags that contradict each other.
func (c *runCmd) check() error {
	fromInput := 0
	for _, path := range c.Context {
		if path == "-" {
			fromInput++
		}
	}
	switch {
	case c.Logprobs < 0:
		return usage("--logprobs: found %d, expected 0 or more", c.Logprobs)
	case c.Logprobs > 0 && !c.JSON:
		return usage("--logprobs needs --json")
	case c.Load != "" && len(c.Context) > 0:
		return usage("--load and --context: expected one of them")
	case c.Save == "-" && (c.Prompt != "" || c.JSON):
		return usage("--save -: standard output is the saved context, expected neither a prompt nor --json")
	case c.Trace == "-":
		return usage("--trace: found -, expected a file: standard output is the answer")
	case c.Trace != "" && c.Trace == c.Save:
		return usage("--trace and --save: expected two files, found one: %s", c.Trace)
	case fromInput > 1:
		return usage("--context -: standard input can be read once")
	case fromInput == 1 && c.Prompt == "" && c.Save == "":
		return usage("standard input is the context: give the prompt as an argument")
	}
	return nil
}

// frame returns the text around context and prompt.
func (r *runner) frame() (dialog.Framing, error) {
	switch {
	case r.Raw:
		f, err := dialog.PlainFraming(r.m)
		f.After = ""
		return f.WithSystem(r.System, "\n\n"), err
	case r.Model == builtin.Name:
		return embedded.Framing.WithSystem(r.System, "\n\n"), nil
	}
	f, err := dialog.SystemFraming(r.e.ctx, r.m, time.Now(), r.System)
	f.Between = "\n\n"
	return f, err
}

func (r *runner) run() error {
	contextText, err := r.readContext()
	if err != nil {
		return err
	}
	prompt, err := r.readPrompt()
	if err != nil {
		return err
	}
	sampling, err := r.sampling(r.m)
	if err != nil {
		return err
	}
	sampling.TopLogProbs = r.Logprobs
	r.e.noteSeed(sampling)
	s, err := r.begin(contextText, prompt)
	if err != nil {
		return err
	}
	defer s.Close()
	if prompt != "" {
		if err := r.answer(s, contextText, prompt, sampling); err != nil {
			return err
		}
	}
	if err := r.writeTrace(s); err != nil {
		return err
	}
	r.result.Model = r.m.ID()
	r.result.Evidence = evidence.Of(r.result.Policy, r.result.Stats.Ratio)
	if r.JSON {
		if err := r.e.writeJSON("lukv run 1", r.result); err != nil {
			return err
		}
	}
	if r.Stats {
		r.result.Stats.write(r.e.err, r.result.Policy)
		if l := r.result.Loss; l != nil {
			fmt.Fprintf(r.e.err, "%-9s %v\n", "loss", l)
			if l.Measured() && l.Lost > 0 && l.Answers == nil {
				fmt.Fprintf(r.e.err, "%-9s not measured for this model and policy: lukv profile --loss-map\n", "answers")
			}
		}
	}
	return nil
}

func (r *runner) readContext() (string, error) {
	var parts []string
	for _, path := range r.Context {
		data, err := r.e.readText(path)
		if err != nil {
			return "", fmt.Errorf("read context: %w", err)
		}
		if err := r.e.checkText(path, data); err != nil {
			return "", fmt.Errorf("read context: %w", err)
		}
		parts = append(parts, strings.ToValidUTF8(string(data), "\ufffd"))
	}
	return strings.Join(parts, "\n\n"), nil
}

func (r *runner) readPrompt() (string, error) {
	if r.Prompt != "" || r.Save != "" {
		return r.Prompt, nil
	}
	if isTerminal(r.e.in) {
		return "", usage("no prompt: give it as an argument or on standard input")
	}
	data, err := r.e.readText("-")
	if err != nil {
		return "", err
	}
	prompt := strings.TrimRight(string(data), "\r\n")
	if prompt == "" {
		return "", usage("no prompt: standard input is empty")
	}
	return prompt, nil
}

// begin returns a session that holds the context.
func (r *runner) begin(contextText, prompt string) (*model.Session, error) {
	o := r.session()
	o.Lookup, o.HugePages = r.Lookup, r.HugePages
	policy, err := r.policy(r.m, r.Model)
	if err != nil {
		return nil, err
	}
	if err := r.exactFlags.check(policy); err != nil {
		return nil, err
	}
	o.Compression = policy
	if r.Load != "" {
		if policy != nil && budgeted(policy) {
			return nil, usage("--policy: the context of --load is compressed already, or was saved as it is; only a policy without ratio and budget goes with it")
		}
		s, err := r.m.LoadSession(r.e.ctx, r.Load, o)
		if err != nil {
			return nil, err
		}
		r.loaded(r.e, r.Load)
		r.contextDone(s, 0)
		return s, r.save(s)
	}
	if policy != nil && contextText == "" && budgeted(policy) {
		if len(r.Context) > 0 {
			return nil, usage("--context is empty: there is nothing to compress before the prompt")
		}
		return nil, usage("compression needs --context: without it there is nothing to compress before the prompt")
	}
	if r.Trace != "" && (policy == nil || !budgeted(policy) && !policy.Decode.Enabled()) { // possible with a policy file
		return nil, usage("--trace would have no effect: the policy compresses nothing")
	}
	traced := r.traceTo(&o)
	if contextText == "" && r.Save != "" {
		return nil, usage("--save needs --context or --load")
	}
	if contextText == "" {
		s, err := r.m.NewSession(o)
		if err != nil {
			return nil, err
		}
		r.contextDone(s, 0)
		r.e.advise(s)
		return s, nil
	}
	head, _ := r.framing.Prompt(contextText, "", "")
	tokens, err := r.encode(head)
	if err != nil {
		return nil, err
	}
	p := r.e.longProgress()
	defer p.clear()
	o.Progress = p.tokens("reading", r.m.Config().Layers)
	protected, err := r.protected(policy, tokens)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	s, err := r.read(o, tokens, protected)
	if err != nil {
		return nil, err
	}
	if err := traced(); err != nil {
		s.Close()
		return nil, err
	}
	p.clear()
	r.contextDone(s, time.Since(start))
	r.e.advise(s)
	r.e.adviseLoss(s, r.result.Loss, r.MaxLoss != nil)
	if err := r.save(s); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// read reads the context and measures the loss of its compression if a flag asks for it.
func (r *runner) read(o model.SessionOptions, tokens []int32, protected int) (*model.Session, error) {
	if r.MaxLoss != nil {
		s, loss, err := dialog.ReadContextWithin(r.e.ctx, r.m, o, tokens, protected, *r.MaxLoss)
		r.result.Loss = &loss
		return s, err
	}
	if r.MeasureLoss {
		o.ProbeLoss = new(model.LossOptions)
	}
	if r.Exact {
		return dialog.ReadContextExact(r.e.ctx, r.m, o, tokens, protected, r.drafts())
	}
	s, err := dialog.ReadContext(r.e.ctx, r.m, o, tokens, protected)
	if err != nil || !r.MeasureLoss {
		return s, err
	}
	loss, err := dialog.Loss(r.e.ctx, s, protected)
	if err != nil {
		s.Close()
		return nil, err
	}
	r.result.Loss = &loss
	return s, nil
}

// protected returns how many of the tokens come before the context, written by the user or
// by the template, and are left alone by the policy.
func (r *runner) protected(policy *lukv.Policy, tokens []int32) (int, error) {
	if policy == nil || !budgeted(policy) {
		return 0, nil
	}
	head, _ := r.framing.Prompt("", "", "")
	front, err := r.encode(head)
	if err != nil {
		return 0, err
	}
	if r.System == "" && len(front) < dialog.LeastFront {
		return 0, nil
	}
	n := dialog.Protected(r.m, policy, front, tokens)
	if n == 0 && r.System != "" {
		r.e.note("note: this policy compresses the system prompt with the context")
	}
	return n, nil
}

// traceTo makes a session collect the trace that --trace asks for. It is written as soon as
// the context has been read or, if decoding compresses too, by writeTrace. The function that
// traceTo returns reports, after the prefill, whether that succeeded.
func (r *runner) traceTo(o *model.SessionOptions) func() error {
	if r.Trace == "" {
		return func() error { return nil }
	}
	if o.Compression.Decode.Enabled() {
		r.trace = &model.Trace{}
		o.Trace = func(t *model.Trace) {
			t.Evicted = r.trace.Evicted
			r.trace = t
		}
		o.TraceEvicted = func(layer, head int, evicted []model.Eviction) { r.trace.AddEvicted(layer, head, evicted) }
		return func() error { return nil }
	}
	var err error
	whole := true
	o.Trace = func(t *model.Trace) { whole, err = false, r.e.writeTo(r.Trace, t.Write) }
	return func() error {
		switch {
		case !whole:
		case r.MaxLoss == nil:
			return usage("--trace: the policy left the context whole: nothing was compressed")
		default: // a ratio that depends on the context
			r.e.note("note: the bound left the context whole: there is no trace to write to %s", r.Trace)
		}
		return err
	}
}

// writeTrace writes a trace that includes the entries evicted while decoding.
func (r *runner) writeTrace(s *model.Session) error {
	t := r.trace
	if t == nil {
		return nil
	}
	if t.Budgets == nil { // no context was compressed
		t.Model, t.Precision, t.Policy = r.m.ID(), r.m.Precision(), s.Policy()
		t.Span, t.Budgets = model.Span{To: s.Len()}, make([][]int, r.m.Config().Layers)
		t.AddEvicted(0, r.m.Config().KVHeads-1, nil) // one row even if nothing was evicted
	}
	return r.e.writeTo(r.Trace, t.Write)
}

// encode returns the tokens of a prompt. With --raw, control tokens in the user's
// text take effect.
func (r *runner) encode(p chat.Prompt) ([]int32, error) {
	if r.Raw {
		p.Data = nil
	}
	return dialog.Encode(r.e.ctx, r.tok, p, cmp.Or(r.MaxContext, r.m.Config().MaxPositions))
}

func (r *runner) save(s *model.Session) error {
	switch r.Save {
	case "":
		return nil
	case "-":
		return r.saveOut(s)
	}
	return s.Save(r.e.ctx, r.Save)
}

// saveOut writes the session to standard output via a temporary file.
func (r *runner) saveOut(s *model.Session) (err error) {
	dir, err := os.MkdirTemp("", "lukv-save-")
	if err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "session")
	if err := s.Save(r.e.ctx, path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	defer f.Close()
	_, err = io.Copy(raw(r.e.out), f)
	return err
}

// contextDone records the statistics of the context.
func (r *runner) contextDone(s *model.Session, took time.Duration) {
	st := s.Stats()
	x := &r.result.Stats
	x.ContextTokens, x.ContextMS = s.Len(), ms(took)
	x.ScoreMS, x.EvictMS = ms(st.ScoreTime), ms(st.EvictTime)
	if took > 0 {
		x.ContextRate = float64(s.Len()) / took.Seconds()
	}
	x.FullBytes, x.CompressedBytes, x.PeakBytes = st.FullBytes, st.CacheBytes, st.PeakBytes
	x.FinalBytes = st.CacheBytes
	x.Ratio, x.Entries, x.FullEntries = st.Ratio, st.Entries, st.FullEntries
	x.LayerRatios, x.LayerBytes = nil, nil
	for _, l := range st.Layers {
		x.LayerRatios, x.LayerBytes = append(x.LayerRatios, l.Ratio), append(x.LayerBytes, l.Bytes)
	}
	x.DraftBytes = st.DraftBytes
	if r.result.Policy = s.Policy(); r.Exact {
		r.result.Policy = s.DraftPolicy()
	}
}

// budgeted reports whether a policy compresses a context, rather than only while decoding.
func budgeted(p *lukv.Policy) bool {
	return p.Ratio > 0 || p.BudgetTokens > 0 || p.BudgetBytes > 0
}

// advise prints notes about the compression of the context.
func (e *env) advise(s *model.Session) {
	for _, note := range s.Notes() {
		e.note("note: %s", note)
	}
}

// notableLoss is the share of lost facts above which a warning is due.
const notableLoss = 0.1

// adviseLoss says what the context of s lost, nil: nobody asked; bounded says that a bound
// chose the ratio.
func (e *env) adviseLoss(s *model.Session, l *model.Loss, bounded bool) {
	switch {
	case l == nil:
	case !l.Measured() && bounded:
		e.note("note: loss %v; the context is not compressed", l)
	case !l.Measured():
		e.note("note: loss %v", l)
	case !bounded && l.Share() > notableLoss:
		e.note("warning: %v: what the context says is partly lost; --max-loss bounds this", l)
	case bounded:
		removed := 0.0
		if p := s.Policy(); p != nil {
			removed = p.Ratio
		}
		e.note("%.0f %% removed: %v", 100*removed, l)
	default:
		e.note("%v", l)
	}
}

// answer feeds the prompt and generates the answer.
func (r *runner) answer(s *model.Session, contextText, prompt string, sampling model.Sampling) error {
	framing := r.framing
	front := chat.Prompt{}
	if contextText == "" && r.Load == "" {
		framing.Between = ""
		front, _ = framing.Prompt("", "", "")
	}
	_, tail := framing.Prompt("", prompt, r.AnswerPrefix)
	tail = chat.Join(front, tail)
	tokens, err := r.encode(tail)
	if err != nil {
		return err
	}
	x := &r.result.Stats
	x.PromptTokens = len(tokens)
	start := time.Now()
	if err := s.Prefill(r.e.ctx, tokens); err != nil {
		return err
	}
	x.PromptMS = ms(time.Since(start))
	start = time.Now()
	err = r.generate(s, sampling)
	took := time.Since(start)
	x.DecodeMS = ms(took)
	if x.NewTokens > 0 && took > 0 {
		x.DecodeRate = float64(x.NewTokens) / took.Seconds()
	}
	r.result.Sample = describeSampling(sampling, r.Stop)
	st := s.Stats()
	x.FinalBytes, x.Drafted, x.Accepted, x.Verified = st.CacheBytes, st.Drafted, st.Accepted, st.Verified
	if x.DraftBytes = st.DraftBytes; r.Exact && x.DraftBytes == 0 {
		r.e.advise(s) // it ended
	}
	return err
}

func (r *runner) generate(s *model.Session, sampling model.Sampling) error {
	write := func(text string) error {
		if r.JSON {
			return nil
		}
		_, err := io.WriteString(r.e.out, text)
		return err
	}
	stops, err := dialog.NewStops(r.Stop)
	if err != nil {
		return err
	}
	answer := dialog.NewAnswer(r.tok, stops)
	if r.Raw {
		answer.Continue()
	}
	ctx, cancel := context.WithCancel(r.e.ctx)
	defer cancel()
	for t, err := range s.Generate(ctx, sampling) {
		if err != nil {
			if !r.JSON {
				fmt.Fprintln(r.e.out)
			}
			return err
		}
		r.result.Stats.NewTokens++
		if r.Logprobs > 0 {
			r.result.Tokens = append(r.result.Tokens, r.token(t))
		}
		text, stopped := answer.Token(t.ID)
		if err := write(text); err != nil {
			return err
		}
		if stopped {
			break
		}
	}
	r.result.Finish = s.FinishReason()
	end := answer.End()
	if answer.Stopped() {
		r.result.Finish = model.FinishStop
	}
	r.result.Answer = answer.Text()
	if err := write(end + "\n"); err != nil {
		return err
	}
	if r.result.Finish == model.FinishLength {
		r.e.note("note: the answer was cut after %s (%s)", report.Count(r.result.Stats.NewTokens, "token"), "--max-tokens, or the end of the context")
	}
	return nil
}

func (r *runner) token(t model.Token) runToken {
	text := func(id int32) string { return strings.ToValidUTF8(string(r.tok.TokenBytes(id)), "\uFFFD") }
	out := runToken{ID: t.ID, Text: text(t.ID), LogProb: t.LogProb}
	for _, p := range t.Top {
		out.Top = append(out.Top, runToken{ID: p.ID, Text: text(p.ID), LogProb: p.LogProb})
	}
	return out
}

// write prints the statistics as text.
func (x *runStats) write(w io.Writer, policy *lukv.Policy) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("tokens", "%d context, %d prompt, %d answer", x.ContextTokens, x.PromptTokens, x.NewTokens)
	line("load", "%s", since(x.LoadMS))
	if x.ContextMS > 0 {
		parts := ""
		if x.ScoreMS+x.EvictMS > 0 {
			parts = fmt.Sprintf(", of this scoring %s, evicting %s", since(x.ScoreMS), since(x.EvictMS))
		}
		line("context", "%s (%.0f tokens/s)%s", since(x.ContextMS), x.ContextRate, parts)
	}
	line("prompt", "%s", since(x.PromptMS))
	line("answer", "%s (%.1f tokens/s)", since(x.DecodeMS), x.DecodeRate)
	if x.Drafted > 0 {
		line("drafts", "%s, %d of them right; verifying passes: %d", report.Count(x.Drafted, "token"), x.Accepted, x.Verified)
	}
	if x.DraftBytes > 0 {
		line("draft", "%s in the compressed cache", report.Bytes(x.DraftBytes))
	}
	if policy != nil && x.DraftBytes == 0 || x.Ratio > 0 {
		line("cache", "%s full, %s compressed, %s peak, %s at the end",
			report.Bytes(x.FullBytes), report.Bytes(x.CompressedBytes), report.Bytes(x.PeakBytes), report.Bytes(x.FinalBytes))
		var kept int64
		for _, n := range x.LayerBytes {
			kept += n
		}
		line("removed", "%.2f %% (%d of %d entries kept, %s of keys and values)", 100*x.Ratio, x.Entries, x.FullEntries, report.Bytes(kept))
		if least, most := slices.Min(x.LayerRatios), slices.Max(x.LayerRatios); most-least > 0.005 {
			line("by layer", "%.1f %% (layer %d) to %.1f %% (layer %d)", 100*least, slices.Index(x.LayerRatios, least), 100*most, slices.Index(x.LayerRatios, most))
		}
	} else {
		line("cache", "%s, %s at the end", report.Bytes(x.FullBytes), report.Bytes(x.FinalBytes))
	}
	if policy != nil {
		line("policy", "%s", policy)
	}
	if text := evidence.Of(policy, x.Ratio); text != "" {
		line("evidence", "%s", text)
	}
	line("machine", "%s, %s, %s", report.Count(x.Threads, "thread"), x.CPU, x.Precision)
	if x.Device != "" {
		line("device", "%s, %s", x.Device, report.Count(x.DeviceLayers, "layer"))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func since(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	if d >= 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
