package arch

import "math"

// GenerationDefaults are the sampling settings that come with a checkpoint, in
// generation_config.json. Settings that are absent have the value that has no
// effect, given in parentheses.
type GenerationDefaults struct {
	DoSample          bool    // (false) sample instead of taking the best token
	Temperature       float64 // (1)
	TopK              int     // (0) keep the K most likely tokens
	TopP              float64 // (1) keep the most likely tokens that make up P
	MinP              float64 // (0) drop tokens below P times the most likely one
	RepetitionPenalty float64 // (1)
	MaxNewTokens      int     // (0) no limit
}

func neutralGeneration() GenerationDefaults {
	return GenerationDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1}
}

// parseGeneration parses the text of a generation_config.json into c.Generation;
// begin and end tokens given there replace those in c. On an error c is
// unchanged. Numbers are read as Python compares them: 50.0 is 50, and 1 is true.
func (c *Config) parseGeneration(text []byte) error {
	o, err := parseObject(text)
	if err != nil {
		return err
	}
	g := neutralGeneration()
	g.DoSample = o.truth("do_sample", false)
	g.Temperature = o.Between("temperature", g.Temperature, 0, 1e6)
	g.TopK = max(0, o.Whole("top_k", 0, -1, math.MaxInt32)) // -1: off, as in vLLM
	g.TopP = o.Between("top_p", g.TopP, 0, 1)
	if g.TopP == 0 { // keeps the likeliest token only, where Sampling's 0 keeps all
		g.TopK, g.TopP = 1, 1
	}
	g.MinP = o.Between("min_p", g.MinP, 0, 1)
	g.RepetitionPenalty = o.Between("repetition_penalty", g.RepetitionPenalty, 1e-6, 1e6)
	g.MaxNewTokens = o.Whole("max_new_tokens", 0, 0, math.MaxInt32)
	bos, eos := o.ids("bos_token_id"), o.ids("eos_token_id")
	if o.Err() != nil {
		return o.Err()
	}
	c.Generation = g
	if bos != nil {
		c.BOS = bos
	}
	if eos != nil {
		c.EOS = eos
	}
	return nil
}
