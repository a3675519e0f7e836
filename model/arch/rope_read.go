package arch

import (
	"cmp"
	"reflect"
)

// rope collects the rotation's settings from both generations of configs, for a model of
// c.MaxPositions. The values are checked by newRope.
func (o object) rope(c *Config, d *configDefaults) RopeConfig {
	params, scaling := object{o.Object("rope_parameters")}, object{o.Object("rope_scaling")}
	for _, p := range []object{params, scaling} {
		for _, kind := range []string{fullKind, slidingKind} {
			if p.Has(kind) {
				p.Fail(kind, "different rotations for kinds of layers are %w", ErrUnsupported)
			}
		}
	}
	return o.ropeOf(params, scaling, c, d)
}

// ropeOf is rope for given settings. The newer rope_parameters hold everything; in the
// older form rope_theta is next to rope_scaling. Where a user has added rope_scaling to a
// newer config, it may replace the parameters only if these scale nothing.
func (o object) ropeOf(params, scaling object, c *Config, d *configDefaults) RopeConfig {
	theta := 10000.0
	if d.theta != 0 {
		theta = d.theta
	}
	base := RopeConfig{Theta: o.Float("rope_theta", theta), Partial: o.partial(0)}
	for _, p := range []object{params, scaling} {
		base.Theta = p.Float("rope_theta", base.Theta)
		base.Partial = p.partial(base.Partial)
	}
	if base.Partial != 0 && !d.partial {
		o.Fail("partial_rotary_factor", "a value of %g is %w, expected 1", base.Partial, ErrUnsupported)
	}
	settings := func(p object) RopeConfig { return p.ropeSettings(base, d) }
	p := params
	switch paramsKind, scalingKind := params.ropeKind(d), scaling.ropeKind(d); {
	case scaling.Len() > 0 && scalingKind == "":
		scaling.Fail("rope_type", "missing")
	case params.Has("factor") && paramsKind == "":
		params.Fail("rope_type", "missing")
	case scaling.Len() == 0 || scalingKind == "default":
	case paramsKind == "" || paramsKind == "default":
		p = scaling
	case reflect.DeepEqual(settings(params), settings(scaling)): // written for readers of either form
	default:
		o.Fail("rope_scaling", "found another scaling than in \"rope_parameters\", expected one")
	}
	r := settings(p)
	switch r.Type {
	case "llama3", "yarn", "longrope":
		// Where it stands beside the scaling, it goes before, as in transformers.
		r.OriginalMax = o.Int("original_max_position_embeddings", cmp.Or(d.original, r.OriginalMax), 1, PositionLimit)
	}
	if r.Type == "yarn" && p.Null("factor") && r.OriginalMax > 0 {
		r.Factor = float64(c.MaxPositions) / float64(r.OriginalMax) // as in transformers
	}
	return r
}

// partial returns the fraction of elements that turn, 0 for all.
func (o object) partial(def float64) float64 {
	if v := o.Float("partial_rotary_factor", def); v != 1 {
		return v
	}
	return 0
}

// ropeKind returns the type of scaling that settings name.
func (o object) ropeKind(d *configDefaults) string {
	kind := o.String("rope_type", o.String("type", ""))
	if d.longrope && (kind == "su" || kind == "yarn") {
		return "longrope" // its older names
	}
	return kind
}

// ropeSettings returns base with the settings of o.
func (o object) ropeSettings(base RopeConfig, d *configDefaults) RopeConfig {
	r := base
	r.Type, r.Factor = o.ropeKind(d), o.Float("factor", 0)
	r.OriginalMax = o.Int("original_max_position_embeddings", 0, 1, PositionLimit)
	r.QueryBeta = o.Float("llama_4_scaling_beta", 0)
	if r.Type == "yarn" || r.Type == "longrope" {
		r.AttentionFactor = o.Float("attention_factor", 0)
		if o.Has("attention_factor") && r.AttentionFactor <= 0 {
			o.Fail("attention_factor", "found %g, expected a number above 0", r.AttentionFactor)
		}
	}
	switch r.Type {
	case "llama3":
		r.LowFreq = o.Float("low_freq_factor", 0)
		r.HighFreq = o.Float("high_freq_factor", 0)
	case "yarn":
		r.BetaFast = o.Float("beta_fast", 0)
		r.BetaSlow = o.Float("beta_slow", 0)
		r.NoTruncate = !o.Bool("truncate", true)
		r.MScale = o.Float("mscale", 0)
		r.MScaleAllDim = o.Float("mscale_all_dim", 0)
	case "longrope":
		r.ShortFactors = o.floats("short_factor", maxHeadDim)
		r.LongFactors = o.floats("long_factor", maxHeadDim)
	}
	return r
}

// ropeByKind sets c.Rope to the rotation of layers with full attention and adds that of
// sliding layers, whose base is local where they are not given apart. It is for configs
// whose rope_parameters may be keyed by the kinds of layers.
func (o object) ropeByKind(c *Config, d *configDefaults, local float64) {
	params, scaling := object{o.Object("rope_parameters")}, object{o.Object("rope_scaling")}
	sliding := RopeConfig{Theta: local}
	if params.Has(fullKind) || params.Has(slidingKind) {
		full, side := object{params.Object(fullKind)}, object{params.Object(slidingKind)}
		c.Rope = o.ropeOf(full, scaling, c, d)
		if params.Has(slidingKind) {
			sliding = o.ropeOf(side, object{}, c, &configDefaults{})
			sliding.Theta = side.Float("rope_theta", local) // rope_theta of the config is that of full attention
		}
	} else {
		c.Rope = o.ropeOf(params, scaling, c, d)
	}
	c.moreRopes = []RopeConfig{sliding}
}
