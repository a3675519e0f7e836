package study

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

// work is a small study with a state. progress may be nil.
type work func(ctx context.Context, state *State, progress func(from, done, total int)) ([]report.Figure, error)

// works are the studies that can be resumed. All but cost give the same figures every
// time.
func works(t *testing.T, m *model.Model) map[string]work {
	t.Helper()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "snapkv"})
	require.NoError(t, err)
	half := lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: 0.5, Profile: profile}
	methods := []eval.Method{{Name: "full"}, {Name: "half", Policy: &half}}
	var questions []Question
	for _, s := range builtin.Samples() {
		if s.Length == 256 && len(questions) < 4 {
			questions = append(questions, Question{s.Task, calibration.Text{Context: s.Context, Questions: []calibration.Question{{Question: s.Question, AnswerPrefix: s.AnswerPrefix}}}})
		}
	}
	return map[string]work{
		"cost": func(ctx context.Context, state *State, progress func(from, done, total int)) ([]report.Figure, error) {
			return Cost(ctx, m, CostOptions{Lengths: []int{64, 32}, Repeats: 2, Methods: methods, State: state, Progress: progress})
		},
		"losses": func(ctx context.Context, state *State, progress func(from, done, total int)) ([]report.Figure, error) {
			return Losses(ctx, m, questions, LossOptions{Calibration: calibration.Options{Prompt: builtin.Prompt, MaxSteps: 4}, Ratio: 0.8, ExactItems: 3,
				Metrics:    []lukv.MetricConfig{{Name: "snapkv"}, {Name: "keydiff"}},
				Allocators: []lukv.AllocatorConfig{{Name: "uniform"}, {Name: "lukv"}},
				Profiles:   []*lukv.Profile{profile, nil}, State: state, Progress: progress})
		},
		"needle": func(ctx context.Context, state *State, progress func(from, done, total int)) ([]report.Figure, error) {
			lengths, depths := []int{128, 256}, []int{0, 100}
			items, err := Needles(lengths, depths, func(s string) int { return len(tok.Encode(s, tokenizer.EncodeOptions{})) })
			if err != nil {
				return nil, err
			}
			answers, err := AskNeedles(ctx, m, items, methods, eval.Options{Framing: dialog.Framing{Before: "<s><|user|>", Between: "\n\n", After: "<|assistant|>"}}, state, progress)
			return []report.Figure{NeedleMap(lengths, depths, answers)}, err
		},
		"continuation": func(ctx context.Context, state *State, progress func(from, done, total int)) ([]report.Figure, error) {
			text := tok.Encode(calibration.Narrative().Context, tokenizer.EncodeOptions{})
			return Continuation(ctx, m, ContinuationOptions{Texts: [][]int32{text}, Start: []int32{tok.BOS()}, Prefix: 100, Tokens: 40, Windows: 2, Ratios: []float64{0, 0.7},
				Shapes: []Shape{{"a", half}, {"b", lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}}}}, State: state, Progress: progress})
		},
	}
}

// kept interrupts a study once it has saved its state the given number of times. It
// returns the last state, read from a file, and how often it was saved.
func kept(t *testing.T, study work, times int) (*State, int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	saves := 0
	var file bytes.Buffer
	state := &State{Command: "c", Model: "m"}
	state.Save = func() error {
		file.Reset()
		if saves++; saves == times {
			cancel()
		}
		return state.Write(&file)
	}
	_, err := study(ctx, state, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.GreaterOrEqual(t, saves, times)
	state, err = ReadState(&file, "x")
	require.NoError(t, err)
	require.Equal(t, [2]string{"c", "m"}, [2]string{state.Command, state.Model})
	return state, saves
}

// A study that was interrupted after any part measures only the others and gives the
// same result as if it had not been.
func TestStudiesGoOn(t *testing.T) {
	m := open(t)
	progress := map[string][][3]int{ // of a study resumed after its second save
		"cost":         {{192, 192, 384}, {192, 256, 384}, {192, 320, 384}, {192, 352, 384}},
		"losses":       {{2, 3, 4}, {2, 4, 4}},
		"needle":       {{2, 0, 8}, {2, 1, 8}, {2, 2, 8}, {2, 3, 8}, {2, 4, 8}, {2, 5, 8}, {2, 6, 8}, {2, 7, 8}, {2, 8, 8}},
		"continuation": {{5, 5, 10}, {5, 6, 10}, {5, 7, 10}, {5, 8, 10}, {5, 8, 10}, {5, 9, 10}},
	}
	for name, study := range works(t, m) {
		t.Run(name, func(t *testing.T) {
			all := 0
			want, err := study(t.Context(), &State{Save: func() error { all++; return nil }}, nil)
			require.NoError(t, err)
			require.Greater(t, all, 3)
			for times := 1; times < all-1; times++ { // answers about one context come together
				state, saves := kept(t, study, times)
				more := 0
				state.Save = func() error { more++; return nil }
				var work [][3]int
				got, err := study(t.Context(), state, func(from, done, total int) { work = append(work, [3]int{from, done, total}) })
				require.NoError(t, err)
				assert.Equal(t, all-saves, more)
				if times == 2 {
					assert.Equal(t, progress[name], work)
				}
				if name != "cost" { // whose times differ
					assert.Equal(t, want, got)
				}
			}
		})
	}
}

// What was measured is kept, in the place where it belongs.
func TestCostKeepsPoints(t *testing.T) {
	cost := works(t, open(t))["cost"]
	for parts := 1; parts < 4; parts++ {
		state, _ := kept(t, cost, parts)
		require.Len(t, state.Parts, parts)
		figures, err := cost(t.Context(), state, nil)
		require.NoError(t, err)
		for i, p := range []string{"full, 64 tokens", "full, 32 tokens", "half, 64 tokens"}[:parts] {
			var y [measures]float64
			require.NoError(t, json.Unmarshal(state.Parts[p], &y))
			for f := range figures {
				method, _, _ := strings.Cut(p, ",")
				l := line(t, figures[f].Lines, method)
				assert.Equal(t, []float64{64, 32}, l.X)
				assert.Equal(t, y[f], l.Y[i%2])
			}
		}
	}
}

// Unfinished work of another study is refused before anything is measured.
func TestForeignStates(t *testing.T) {
	studies := works(t, open(t))
	for name, study := range studies {
		state, _ := kept(t, study, 1)
		for part := range state.Parts {
			for _, data := range []string{`"x"`, `{"x":1}`, `[[1]]`} {
				broken := *state
				broken.Parts = map[string]json.RawMessage{part: json.RawMessage(data)}
				_, err := study(t.Context(), &broken, nil)
				require.ErrorContains(t, err, "unfinished work: "+part, name)
			}
		}
		for other := range studies {
			if other != name {
				_, err := studies[other](t.Context(), state, nil)
				require.ErrorContains(t, err, "of other data, options or profiles", "%s with %s", other, name)
			}
		}
	}

	// Sums with counts or shapes other than this study's would be indexed out of
	// bounds.
	state, _ := kept(t, studies["losses"], 2)
	for _, edit := range []func(*lossSums){
		func(s *lossSums) { s.N = -1 },
		func(s *lossSums) { s.N = 5 },
		func(s *lossSums) { s.Recall = s.Recall[1:] },
		func(s *lossSums) { s.Recall[1] = s.Recall[1][1:] },
		func(s *lossSums) { s.Heads = s.Heads[1:] },
		func(s *lossSums) { s.Heads[0] = s.Heads[0][1:] },
		func(s *lossSums) { s.Heads[0][0] = s.Heads[0][0][1:] },
		func(s *lossSums) { s.Heads[0][0][0] = nil },
		func(s *lossSums) { s.Solver[1] = nil },
		func(s *lossSums) { s.Solver = s.Solver[1:] },
		func(s *lossSums) { s.Tasks["other"] = 1 },
		func(s *lossSums) { s.Local["other"] = nil },
		func(s *lossSums) {
			for task := range s.Local {
				s.Local[task][0] = s.Local[task][0][1:]
			}
		},
		func(s *lossSums) {
			for task := range s.Local {
				s.Local[task][0][0] = nil
			}
		},
	} {
		var sums lossSums
		require.NoError(t, json.Unmarshal(state.Parts[sumsPart], &sums))
		edit(&sums)
		broken := *state
		broken.Parts = nil
		require.NoError(t, broken.put(sumsPart, &sums))
		_, err := studies["losses"](t.Context(), &broken, nil)
		require.ErrorContains(t, err, "of another shape", fmt.Sprintf("%+v", sums))
	}

	for text, want := range map[string]string{"": "EOF", "{}": `format ""`, `{"format":"lukv analysis 1"}`: "expected", `{"format":"lukv analysis state 1","parts":[]}`: "parts"} {
		_, err := ReadState(strings.NewReader(text), "x")
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "unfinished work x")
	}
}

// The data, every option and the profile are inputs.
func TestInputs(t *testing.T) {
	m := open(t)
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "snapkv"})
	require.NoError(t, err)
	other := *profile
	other.Pairs++
	o := CostOptions{Lengths: []int{16}, Repeats: 1}
	run := func(state *State, p *lukv.Profile) error {
		o.State, o.Methods = state, []eval.Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Profile: p}}}
		_, err := Cost(t.Context(), m, o)
		return err
	}
	state := &State{}
	require.NoError(t, run(state, profile))
	require.NoError(t, run(state, profile))
	require.ErrorContains(t, run(state, &other), "of other data, options or profiles")
	o.Repeats = 2
	require.ErrorContains(t, run(state, profile), "of other data, options or profiles")
}

// Sums accepted as this study's own can be drawn.
func FuzzState(f *testing.F) {
	o := LossOptions{Metrics: []lukv.MetricConfig{{Name: "snapkv"}}, Allocators: []lukv.AllocatorConfig{{Name: "uniform"}}, Profiles: make([]*lukv.Profile, 1)}
	c := &model.Config{Layers: 1, KVHeads: 2, Windows: []int{0}}
	fresh := func(t testing.TB) *losses {
		l, err := newLosses(context.Background(), "m", c, &o)
		require.NoError(t, err)
		return l
	}
	seed := func(edit func(*lossSums)) {
		l := fresh(f)
		l.N, l.Exact, l.Tasks["t"] = 1, 1, 1
		l.Local["t"] = [][][]float64{{slices.Clone(localGrid), slices.Clone(localGrid)}}
		l.Heads[0][0] = [][]float64{{1, 2}}
		edit(&l.lossSums)
		state := &State{}
		require.NoError(f, state.put(sumsPart, &l.lossSums))
		var b bytes.Buffer
		require.NoError(f, state.Write(&b))
		f.Add(b.Bytes())
	}
	seed(func(*lossSums) {})
	seed(func(s *lossSums) { s.Heads[0][0] = nil })
	seed(func(s *lossSums) { s.Local["t"] = nil })
	seed(func(s *lossSums) { s.Solver[1] = nil })
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := ReadState(bytes.NewReader(data), "x")
		if err != nil {
			return
		}
		l := fresh(t)
		if have, err := state.take(sumsPart, &l.lossSums); have && err == nil && l.fit(3) && l.N > 0 {
			for _, f := range l.figures() {
				_ = f.Validate()
			}
		}
	})
}
