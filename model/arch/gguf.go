package arch

import (
	"fmt"
	"math"
	"slices"
)

// GGUFKeys describes the network of c as the metadata of a GGUF file do: the name of its
// architecture, which begins its keys, their values (uint32, float32, string and []bool), and
// the vectors by which rotations are divided, by the names of their tensors. What no key holds
// is left out, so that a reader may find another network: see [Config.Differs].
func (c *Config) GGUFKeys() (name string, keys map[string]any, vectors map[string][]float32, err error) {
	f := familyOf(c.Arch)
	if f == nil {
		return "", nil, nil, fmt.Errorf("architecture %q is %w, expected one of %v", c.Arch, ErrUnsupported, architectures())
	}
	k := &ggufKeys{c: c, prefix: f.gguf + ".", keys: map[string]any{}, vectors: map[string][]float32{}}
	k.number("context_length", c.MaxPositions)
	k.number("embedding_length", c.Hidden)
	k.number("block_count", c.Layers)
	k.number("feed_forward_length", c.Intermediate)
	k.number("vocab_size", c.Vocab)
	k.number("attention.head_count", c.Heads)
	k.number("attention.head_count_kv", c.KVHeads)
	k.number("attention.key_length", c.HeadDim)
	k.number("attention.value_length", c.HeadDim)
	k.real("attention.layer_norm_rms_epsilon", c.NormEps)
	k.layers()
	k.scalars()
	if err := k.rope(); err != nil {
		return "", nil, nil, err
	}
	return f.gguf, k.keys, k.vectors, nil
}

// ggufKeys collects what describes a network.
type ggufKeys struct {
	c       *Config
	prefix  string
	keys    map[string]any
	vectors map[string][]float32
}

func (k *ggufKeys) number(key string, n int) { k.keys[k.prefix+key] = uint32(n) }

func (k *ggufKeys) real(key string, x float64) { k.keys[k.prefix+key] = float32(x) }

// layers sets what the plans of layers say: windows, and mixtures, which are alike in all
// layers that have one.
func (k *ggufKeys) layers() {
	plans, slides := k.c.Plans(), []bool(nil)
	window := 0
	for _, p := range plans {
		window = max(window, p.Window)
		slides = append(slides, p.Window > 0)
	}
	if window > 0 {
		k.number("attention.sliding_window", window)
	}
	if k.c.Arch == gemma3Family.arch {
		k.pattern(slides)
	}
	at := slices.IndexFunc(plans, func(p LayerPlan) bool { return p.FFN.Experts > 0 })
	if at < 0 {
		return
	}
	mix := plans[at].FFN
	k.number("expert_count", mix.Experts)
	k.number("expert_used_count", mix.Chosen)
	if k.c.Arch != mixtralFamily.arch { // where it is the width of layers
		k.number("expert_feed_forward_length", mix.Width)
	}
	if mix.Shared > 0 {
		k.number("expert_shared_feed_forward_length", mix.Shared)
	}
}

// pattern sets which layers have a window: the last of each period has none, or a list.
func (k *ggufKeys) pattern(slides []bool) {
	const key = "attention.sliding_window_pattern"
	for period := 1; period <= maxLayers; period++ {
		fits := true
		for at, s := range slides {
			fits = fits && s == ((at+1)%period != 0)
		}
		if fits && period > 1 {
			k.number(key, period)
			return
		}
		if period > len(slides) {
			break
		}
	}
	k.keys[k.prefix+key] = slides
}

// scalars sets the factors and limits that families have keys for.
func (k *ggufKeys) scalars() {
	c, p := k.c, k.c.Plans()[0]
	switch c.Arch {
	case graniteFamily.arch:
		k.real("embedding_scale", c.Scalars.embedScale)
		k.real("attention.scale", p.ScoreScale)
		k.real("residual_scale", p.ResidualScale)
		k.real("logit_scale", 1/c.Scalars.LogitScale)
	case gemma2Family.arch, gemma3Family.arch:
		if p.ScoreCap > 0 {
			k.real("attn_logit_softcapping", p.ScoreCap)
		}
		if c.Scalars.LogitCap > 0 {
			k.real("final_logit_softcapping", c.Scalars.LogitCap)
		}
	}
}

// rope sets the rotation.
func (k *ggufKeys) rope() error {
	const scaling = "rope.scaling."
	ropes, err := NewRopes(k.c)
	if err != nil {
		return err
	}
	r, rc := ropes[0], &k.c.Rope
	k.number("rope.dimension_count", r.dims)
	k.real("rope.freq_base", rc.Theta)
	if len(k.c.moreRopes) > 0 {
		k.real("rope.freq_base_swa", k.c.moreRopes[0].Theta)
	}
	if rc.QueryBeta != 0 {
		k.real("attention.temperature_scale", rc.QueryBeta)
	}
	switch rc.Type {
	case "", "default":
	case "linear":
		k.keys[k.prefix+scaling+"type"] = rc.Type
		k.real(scaling+"factor", rc.Factor)
	case "llama3":
		k.vectors["rope_freqs.weight"] = r.divisors()
	case "longrope":
		k.vectors["rope_factors_short.weight"], k.vectors["rope_factors_long.weight"] = float32s(rc.ShortFactors), float32s(rc.LongFactors)
		k.number(scaling+"original_context_length", r.maxPos)
		k.real(scaling+"attn_factor", r.factor)
	case "yarn":
		k.keys[k.prefix+scaling+"type"] = rc.Type
		k.yarn(r, rc)
	default:
		return fmt.Errorf("rope type: the scaling %q is %w in GGUF files, expected default, linear, llama3, yarn or longrope", rc.Type, ErrUnsupported)
	}
	return nil
}

// yarn sets YaRN's settings. GGUF has a factor of its formula in place of the factor of cosine
// and sine, and no key for an mscale but 1.
func (k *ggufKeys) yarn(r *Rope, rc *RopeConfig) {
	const scaling = "rope.scaling."
	original := rc.OriginalMax
	if original == 0 {
		original = k.c.MaxPositions
	}
	k.real(scaling+"factor", rc.Factor)
	k.number(scaling+"original_context_length", original)
	if rc.BetaFast != 0 {
		k.real(scaling+"yarn_beta_fast", rc.BetaFast)
	}
	if rc.BetaSlow != 0 {
		k.real(scaling+"yarn_beta_slow", rc.BetaSlow)
	}
	formula := 1 + float64(0.1*math.Log(rc.Factor))
	switch {
	case rc.AttentionFactor == 0 && rc.MScale == 1 && rc.MScaleAllDim != 0:
		k.real(scaling+"yarn_log_multiplier", rc.MScaleAllDim)
	case math.Abs(r.factor-formula) > 1e-6:
		k.real(scaling+"attn_factor", r.factor/formula)
	}
}

// divisors returns what the frequencies of an unscaled rotation are divided by.
func (r *Rope) divisors() []float32 {
	out := make([]float32, r.dims/2)
	for i := range out {
		out[i] = float32(frequency(r.theta, i, r.dims) / r.freq[i])
	}
	return out
}

func float32s(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

// GGUFTensor is a tensor of a GGUF file: rows of Parts, one after the other.
type GGUFTensor struct {
	Name  string
	Shape []int // outermost first
	Parts []GGUFPart
}

// GGUFPart is a tensor of the network.
type GGUFPart struct {
	Role   Role
	Layer  int // of a tensor that belongs to a layer
	Expert int // of an expert's
}

// GGUFTensors lists the tensors of a GGUF file of the network, in order. Matrices that folders
// of the family have in one are in one; so are those of experts.
func (c *Config) GGUFTensors() []GGUFTensor {
	table := c.Tensors()
	whole := func(role Role, shape ...int) GGUFTensor {
		return GGUFTensor{table.Name(GGUF, role, 0), shape, []GGUFPart{{Role: role}}}
	}
	list := []GGUFTensor{whole(RoleEmbed, c.Vocab, c.Hidden)}
	for at, p := range c.Plans() {
		for role := RoleAttnNorm; role < LayerRoles; role++ {
			if shape := p.Shape(c, role); shape != nil {
				list = append(list, p.ggufTensors(c, table, role, at, shape)...)
			}
		}
	}
	list = append(list, whole(RoleLastNorm, c.Hidden))
	if !c.TiedEmbeddings {
		list = append(list, whole(RoleHead, c.Vocab, c.Hidden))
	}
	return list
}

// fused lists the roles that a folder may hold in one tensor, in the order of its rows.
var fused = map[Role][]Role{
	roleQKV:     {RoleQ, RoleK, RoleV},
	roleQKVBias: {RoleQBias, RoleKBias, RoleVBias},
	roleGateUp:  {RoleGate, RoleUp},
}

// stacked lists the tensors of all experts.
var stacked = map[Role]Role{RoleExpertGate: roleExpertsGate, RoleExpertUp: roleExpertsUp, RoleExpertDown: roleExpertsDown}

// ggufTensors returns the tensor of a GGUF file that begins with that of a role, which has the
// given shape, in layer at; none if it is inside another's.
func (p *LayerPlan) ggufTensors(c *Config, table TensorTable, role Role, at int, shape []int) []GGUFTensor {
	if all, ok := stacked[role]; ok {
		t := GGUFTensor{Name: table.Name(GGUF, all, at), Shape: append([]int{p.FFN.Experts}, shape...)}
		for x := range p.FFN.Experts {
			t.Parts = append(t.Parts, GGUFPart{role, at, x})
		}
		return []GGUFTensor{t}
	}
	for in, roles := range fused {
		if table.Name(HuggingFace, in, at) == "" || !slices.Contains(roles, role) {
			continue
		}
		if role != roles[0] {
			return nil
		}
		t := GGUFTensor{Name: table.Name(GGUF, in, at), Shape: slices.Clone(shape)}
		t.Shape[0] = 0
		for _, r := range roles {
			t.Shape[0] += p.Shape(c, r)[0]
			t.Parts = append(t.Parts, GGUFPart{Role: r, Layer: at})
		}
		return []GGUFTensor{t}
	}
	if role == RoleSharedMix {
		shape = shape[1:] // a vector
	}
	return []GGUFTensor{{table.Name(GGUF, role, at), shape, []GGUFPart{{Role: role, Layer: at}}}}
}

// GGUFRow returns which row of a tensor of the network is the given row of the one in a GGUF
// file: of queries and keys, some families have the rows that rotate together side by side.
func (c *Config) GGUFRow(role Role, row int) int {
	switch role {
	case RoleQ, RoleQBias, RoleK, RoleKBias:
		if c.Interleaved(GGUF) {
			d := c.HeadDim
			in := row % d
			return row - in + in%2*(d/2) + in/2
		}
	}
	return row
}

// Differs names a setting in which the network of d is not that of c, with both values where
// they are numbers, or returns "". Numbers may differ by what 32-bit floats cannot tell; windows
// that reach as far as the context are none; and weights of norms may hold the offset that the
// other network adds.
func (c *Config) Differs(d *Config) string {
	for _, x := range []struct {
		name string
		a, b int
	}{
		{"number of layers", c.Layers, d.Layers}, {"hidden size", c.Hidden, d.Hidden},
		{"number of heads", c.Heads, d.Heads}, {"number of KV heads", c.KVHeads, d.KVHeads}, {"head dimension", c.HeadDim, d.HeadDim},
		{"size of the vocabulary", c.Vocab, d.Vocab}, {"context length", c.MaxPositions, d.MaxPositions},
	} {
		if x.a != x.b {
			return x.name + insteadOf(x.b, x.a)
		}
	}
	if c.TiedEmbeddings != d.TiedEmbeddings {
		return "place of the output matrix (tie_word_embeddings)"
	}
	for _, x := range []struct {
		name string
		a, b float64
	}{
		{"epsilon of norms", c.NormEps, d.NormEps}, {"scale of embeddings", c.Scalars.embedScale, d.Scalars.embedScale},
		{"scale of logits", c.Scalars.LogitScale, d.Scalars.LogitScale}, {"limit of logits", c.Scalars.LogitCap, d.Scalars.LogitCap},
	} {
		if !near(x.a, x.b) {
			return x.name + insteadOf(x.b, x.a)
		}
	}
	if c.Scalars.embedScale != 0 && c.Scalars.embedRounded != d.Scalars.embedRounded {
		return "rounding of the scale of embeddings"
	}
	plans := d.Plans()
	for at, p := range c.Plans() {
		if name, values := p.differs(&plans[at], c.MaxPositions); name != "" {
			return fmt.Sprintf("%s in layer %d%s", name, at, values)
		}
	}
	return c.ropesDiffer(d)
}

func insteadOf[T int | float64](found, want T) string {
	return fmt.Sprintf(", %v instead of %v", found, want)
}

// near reports whether two numbers are the same for 32-bit floats, about.
func near(a, b float64) bool { return a == b || math.Abs(a-b) <= 1e-6*max(math.Abs(a), math.Abs(b)) }

// ropesDiffer is Differs for rotations.
func (c *Config) ropesDiffer(d *Config) string {
	a, errA := NewRopes(c)
	b, errB := NewRopes(d)
	if errA != nil || errB != nil || len(a) != len(b) {
		return "set of rotations"
	}
	for i, r := range a {
		s := b[i]
		last := c.MaxPositions
		switch {
		case r.dims != s.dims:
			return "number of elements that rotate" + insteadOf(s.dims, r.dims)
		case !near(r.factor, s.factor):
			return "factor of the rotation" + insteadOf(s.factor, r.factor)
		case !near(float64(r.QueryFactor(last)), float64(s.QueryFactor(last))):
			return "factor of queries"
		}
		for _, length := range []int{1, r.maxPos, r.maxPos + 1, last, 2 * last} {
			if !slices.EqualFunc(r.InvFreq(length), s.InvFreq(length), near) {
				return "list of frequencies"
			}
		}
	}
	return ""
}
