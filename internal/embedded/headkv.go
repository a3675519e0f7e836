package embedded

import (
	"context"
	"encoding/json"

	"github.com/lukv/lukv/eval/scoring"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// ProbeSteps is the default maximum length of the answer to a probe, in tokens.
const ProbeSteps = 32

// HeadKV measures the importance of the heads of any model and returns it as the
// allocator headkv. It sets o.Correct as the method does: the word F1 of an answer must
// exceed one half.
func HeadKV(ctx context.Context, m *model.Model, probes []calibration.Probe, o calibration.ProbeOptions) (lukv.AllocatorConfig, *calibration.HeadScores, error) {
	a := lukv.AllocatorConfig{Name: "headkv"}
	o.Correct = func(p *calibration.Probe, answer string) bool {
		score, _ := scoring.Options{Match: scoring.MatchF1}.Score(&scoring.Reference{Answers: []string{p.Answer}}, answer)
		return score > 0.5
	}
	scores, err := calibration.ProbeHeads(ctx, m, probes, o)
	if err != nil {
		return a, nil, err
	}
	params, err := json.Marshal(struct {
		Importance [][]float64 `json:"importance"`
	}{scores.Scores})
	if err != nil {
		return a, nil, err
	}
	a.Params = string(params)
	return a, scores, a.Validate()
}
