package lukv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// headKV divides part of the budget by a static importance of every query head, from a
// retrieval-and-reasoning probe.
//
// Fu et al., "HeadKV", 2024, https://arxiv.org/abs/2410.19258; spec 4.4.
type headKV struct {
	// Importance is the probe's mean score of each query head, [L][H]. JSON
	// also accepts the published form: an object with the scores of all probes,
	// keyed by "layer-head".
	Importance headImportance `json:"importance"`

	// Beta sets the size of the shared pool, 1/Beta of what the protected
	// entries leave: a larger Beta means a smaller pool. Tau is the temperature.
	Beta float64 `json:"beta"`
	Tau  float64 `json:"tau"`
}

// headImportance is a score of every query head, [L][H].
type headImportance [][]float64

// UnmarshalJSON reads rows, or lists of scores keyed by "layer-head", which it
// averages.
func (e *headImportance) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		return json.Unmarshal(data, (*[][]float64)(e))
	}
	var lists map[string][]float64
	if err := json.Unmarshal(data, &lists); err != nil {
		return err
	}
	layers, heads := 0, 0
	at := make(map[[2]int]float64, len(lists))
	for key, scores := range lists {
		before, after, _ := strings.Cut(key, "-")
		l, err := strconv.Atoi(before)
		h, err2 := strconv.Atoi(after)
		if err != nil || err2 != nil || h < 0 || l >= len(lists) || h >= len(lists) || len(scores) == 0 {
			return fmt.Errorf("importance: found %d scores of head %q, expected some of layer-head for every head", len(scores), key)
		}
		sum := 0.0
		for _, v := range scores {
			sum += v
		}
		at[[2]int{l, h}] = sum / float64(len(scores))
		layers, heads = max(layers, l+1), max(heads, h+1)
	}
	if layers*heads != len(lists) || len(at) != len(lists) {
		return fmt.Errorf("importance: found %d heads of %d layers of %d, expected every head once", len(lists), layers, heads)
	}
	*e = make(headImportance, layers)
	for l := range *e {
		(*e)[l] = make([]float64, heads)
		for h := range (*e)[l] {
			(*e)[l][h] = at[[2]int{l, h}]
		}
	}
	return nil
}

func (a headKV) Validate() error {
	if len(a.Importance) == 0 || len(a.Importance[0]) == 0 {
		return errors.New("importance: found none, expected a score for each layer and query head")
	}
	for l, row := range a.Importance {
		for h, e := range row {
			if !(e >= 0) || math.IsInf(e, 1) || len(row) != len(a.Importance[0]) {
				return fmt.Errorf("importance: layer %d, query head %d: found %v in a row of %d, expected at least 0 in a row of %d", l, h, e, len(row), len(a.Importance[0]))
			}
		}
	}
	return firstOf(within("beta", a.Beta, 1, 1e6), within("tau", a.Tau, 1e-3, 1e3))
}

func (headKV) BudgetsKnown() Knowledge { return KnownBefore }

func (a headKV) Budgets(d Demand, _ []Scores) ([][]int, error) {
	if H := len(a.Importance[0]); len(a.Importance) != d.Layers || H < d.KVHeads || H%d.KVHeads != 0 {
		return nil, fmt.Errorf("importance: found %d layers of %d query heads, expected %d layers of a multiple of %d", len(a.Importance), H, d.Layers, d.KVHeads)
	}
	fixed := min(d.Protection.Count(d.T), d.Share()) // protected entries must not exceed the budget either
	rows := make([][]float64, 0, d.ActiveLayers())
	for l, row := range a.Importance {
		if d.Includes(l) {
			rows = append(rows, row)
		}
	}
	var flat []int
	for _, perQuery := range headShares(rows, max(0, d.Share()-fixed), a.Beta, a.Tau) {
		for _, n := range groupMeans(perQuery, d.KVHeads) {
			flat = append(flat, min(max(n+fixed, d.Rounding.least()), d.T))
		}
	}
	if d.Absolute { // nor may the rounded counts
		trim(flat, d.Entries, d.Rounding.least())
	}
	return d.spread(flat), nil
}

// headShares returns every query head's part of a base capacity of B entries
// per head; a part may exceed B.
func headShares(importance [][]float64, B int, beta, tau float64) [][]int {
	pool := floorDivide(float64(B), beta)
	heads, most := 0, 0.0
	for _, row := range importance {
		heads += len(row)
		for _, e := range row {
			most = max(most, e)
		}
	}
	// Importance is relative to the largest, whose power is 1 at every
	// temperature, so that the sum is neither 0 nor infinite.
	norm := 0.0
	p := make([][]float64, len(importance))
	for l, row := range importance {
		p[l] = make([]float64, len(row))
		for h, e := range row {
			if p[l][h] = 1; most > 0 {
				p[l][h] = e / most
			}
			if tau != 1 {
				p[l][h] = power(p[l][h], tau)
			}
			norm += p[l][h]
		}
	}
	out := make([][]int, len(importance))
	for l, row := range p {
		out[l] = make([]int, len(row))
		for h, v := range row {
			out[l][h] = int(math.RoundToEven(float64(v/norm*pool*float64(heads)) + float64(B) - pool))
		}
	}
	return out
}

// floorDivide returns the integer part of the exact quotient x/y of two positive
// numbers. Floating-point division may round up to the next integer: 1298/1.1
// gives 1180, although 1.1 as a float is above 1.1 and goes into 1298 only 1179
// times.
func floorDivide(x, y float64) float64 {
	return math.Round((x - math.Mod(x, y)) / y)
}

// groupMeans returns the rounded mean of the counts of each KV head's query
// heads.
func groupMeans(perQuery []int, kvHeads int) []int {
	G := len(perQuery) / kvHeads
	out := make([]int, kvHeads)
	for h := range out {
		sum := 0
		for _, n := range perQuery[h*G : (h+1)*G] {
			sum += n
		}
		out[h] = int(math.RoundToEven(float64(sum) / float64(G)))
	}
	return out
}
