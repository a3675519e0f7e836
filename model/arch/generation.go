package arch

import "math"

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
