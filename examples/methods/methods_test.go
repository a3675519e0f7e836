package methods_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval"
	_ "github.com/lukv/lukv/examples/methods"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// check fails the test if err is not nil.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const policyText = `{"metric":{"name":"chunks","metric":"value_norm","size":4},
	"allocator":{"name":"at_least","allocator":{"name":"tilted","tilt":0.5},"entries":20},"ratio":0.75}`

// TestPolicy compresses a session under a policy in JSON, and parses the policy that
// the session reports.
func TestPolicy(t *testing.T) {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	check(t, err)
	defer m.Close()
	p, err := lukv.ParsePolicy([]byte(policyText))
	check(t, err)
	s, err := m.NewSession(model.SessionOptions{Compression: p})
	check(t, err)
	defer s.Close()
	tokens := make([]int32, 400)
	for i := range tokens {
		tokens[i] = int32(i%90 + 5)
	}
	check(t, s.Prefill(ctx, tokens))
	for at := range m.Config().Layers {
		want := 100 + (1-2*(at%2))*50
		if n := s.Cache().Len(at, 0); n != want {
			t.Errorf("layer %d holds %d entries, expected %d", at, n, want)
		}
		if pos := s.Cache().Positions(at, 0, nil); pos[3] != 3 {
			t.Errorf("layer %d: positions %v …, expected the sinks first", at, pos[:4])
		}
	}
	full := s.Policy().String()
	for _, want := range []string{`{"name":"chunks","metric":{"name":"value_norm","sinks":4},"size":4}`, `"tilt":0.5`} {
		if !strings.Contains(full, want) {
			t.Errorf("the session's policy is %s, expected it to contain %s", full, want)
		}
	}
	again, err := lukv.ParsePolicy([]byte(full))
	check(t, err)
	if again.String() != full {
		t.Errorf("the policy comes back as %s, expected %s", again, full)
	}
}

// TestKeyChange scores a layer whose keys are the same but for their rotation, and one
// entry that differs.
func TestKeyChange(t *testing.T) {
	ctx := context.Background()
	m, err := lukv.NewMetric(lukv.MetricConfig{Name: "key_change"})
	check(t, err)
	keys := make([]float32, 0, 20)
	for p := range 10 {
		sin, cos := math.Sincos(0.5 * float64(p))
		length := 1.0
		if p == 6 {
			length = 3
		}
		keys = append(keys, float32(length*cos), float32(length*sin))
	}
	l := &lukv.Layer{T: 10, Heads: 1, KVHeads: 1, HeadDim: 2, NextPosition: 10, InvFreq: []float64{0.5},
		Keys: func(_, lo, hi int, _ []float32) []float32 { return keys[2*lo : 2*hi] }}
	s, err := lukv.Score(ctx, m, l)
	check(t, err)
	for p, v := range s[0] {
		if want := float32(4 * (b2i(p == 6) + b2i(p == 7))); math.Abs(float64(v-want)) > 1e-5 {
			t.Errorf("entry %d: score %v, expected %v", p, v, want)
		}
	}
	l.Keys = nil
	if _, err := lukv.Score(ctx, m, l); err == nil || !strings.Contains(err.Error(), "keys are missing") {
		t.Errorf("without keys: %v", err)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestProfile measures a profile of a metric and uses it under LU-KV.
func TestProfile(t *testing.T) {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	check(t, err)
	defer m.Close()
	c := builtin.Calibration()[0]
	q := c.Questions[0]
	text := calibration.Text{Context: c.Context, Questions: []calibration.Question{{Question: q.Question, AnswerPrefix: q.AnswerPrefix}}}
	metric := lukv.MetricConfig{Name: "value_norm"}
	if lukv.MetricSummary(metric.Name) == "" {
		t.Error("nothing explains the metric")
	}
	p, err := calibration.Profile(ctx, m, []calibration.Text{text}, calibration.ProfileOptions{
		Options: calibration.Options{Prompt: builtin.Prompt, MaxSteps: 8}, Metric: metric,
	})
	check(t, err)
	policy := &lukv.Policy{Metric: metric, Ratio: 0.5, Profile: p,
		Allocator: lukv.AllocatorConfig{Name: "at_least", Params: `{"allocator":"lukv"}`}}
	s, err := m.NewSession(model.SessionOptions{Compression: policy})
	check(t, err)
	defer s.Close()
	if s.Policy().ProfileDigest == "" {
		t.Error("the session's policy names no profile")
	}
	policy.Profile = nil
	if _, err := m.NewSession(model.SessionOptions{Compression: policy}); err == nil || !strings.Contains(err.Error(), "profile: found none") {
		t.Errorf("without a profile: %v", err)
	}
}

// framing is the embedded model's prompt.
var framing = dialog.Framing{Before: "<s><|user|>", Between: "\n\n", After: "<|assistant|>"}

// TestEval answers a question under the methods.
func TestEval(t *testing.T) {
	ctx := context.Background()
	m, err := builtin.Open(ctx)
	check(t, err)
	defer m.Close()
	p, err := lukv.ParsePolicy([]byte(policyText))
	check(t, err)
	x := builtin.Samples()[0]
	item := eval.Item{Task: x.Task, Context: x.Context, Question: x.Question, AnswerPrefix: x.AnswerPrefix, Answers: x.Answers, MaxNewTokens: 4}
	n := 0
	err = eval.Run(ctx, m, []eval.Item{item}, []eval.Method{{Name: "mine", Policy: p}}, eval.Options{Framing: framing}, func(a eval.Answer) error {
		n++
		if a.Metric != "chunks" || a.Allocator != "at_least" || a.Error != "" || a.RatioAchieved < 0.6 {
			t.Errorf("answer %+v", a)
		}
		return nil
	})
	check(t, err)
	if n != 1 {
		t.Errorf("%d answers, expected 1", n)
	}
}

// TestCommand builds the command with a blank import of this package and runs it with a
// metric and an allocator by name.
func TestCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("links the command")
	}
	dir := t.TempDir()
	binary, context := filepath.Join(dir, "any"), filepath.Join(dir, "context.txt")
	if out, err := exec.Command("go", "build", "-tags", "novulkan", "-o", binary, "./cmd/mylukv").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	check(t, os.WriteFile(context, []byte(builtin.Samples()[0].Context), 0o600))
	run := exec.Command(binary, "run", "builtin", "--context", context, "--ratio", "0.6", "--metric", "value_norm",
		"--allocator", `{"name":"tilted","tilt":0.1}`, "--max-tokens", "2", "--json", builtin.Samples()[0].Question)
	out, err := run.Output()
	if err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	for _, want := range []string{`"value_norm"`, `"tilted"`, `"tilt": 0.1`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output has no %s:\n%s", want, out)
		}
	}
	sample := builtin.Samples()[0]
	line, err := json.Marshal(map[string]any{"task": "qa", "context": sample.Context, "question": sample.Question, "answers": sample.Answers})
	check(t, err)
	results, data := filepath.Join(dir, "results"), filepath.Join(dir, "data.jsonl")
	check(t, os.WriteFile(data, line, 0o600))
	if out, err := exec.Command(binary, "eval", "builtin", "--data", data, "--no-full", "--metric", "value_norm", "--ratio", "0.5", "--out", results).CombinedOutput(); err != nil {
		t.Fatalf("eval: %v\n%s", err, out)
	}
	if out, err := exec.Command(binary, "report", results).Output(); err != nil || !strings.Contains(string(out), "value_norm") {
		t.Errorf("report: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"eval", "--help"}, {"profile", "--help"}, {"report", "--help"}, {"serve", "--help"}, {"completion", "bash"}} {
		out, err := exec.Command(binary, args...).Output()
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if !strings.Contains(string(out), "mylukv") || args[0] == "completion" && !strings.Contains(string(out), "value_norm") {
			t.Errorf("%v: the output has neither the name of the program nor that of the metric:\n%s", args, out)
		}
	}
}
