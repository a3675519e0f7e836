package model

import (
	"slices"
	"sync"

	"github.com/lukv/lukv/lukv"
)

// maxPlans bounds the compiled policies that a model keeps.
const maxPlans = 16

// planCache keeps the compiled policies of a model, the most recently used last: estimates and
// sessions of a request are made with the same one.
type planCache struct {
	mu       sync.Mutex
	list     []compiledPolicy
	compiled int // how many times a policy was compiled
}

type compiledPolicy struct {
	key  policyKey
	plan *lukv.Compiled
}

// policyKey is everything that a model's compiled policy depends on.
type policyKey struct {
	policy        lukv.Policy // without Protection
	protection    lukv.Protection
	protects      bool
	bytesPerEntry int
}

// compile returns the policy compiled for a cache of a model with the given identity.
func (p *planCache) compile(policy *lukv.Policy, id string, shape lukv.CacheShape) (*lukv.Compiled, error) {
	key := policyKey{policy: *policy, bytesPerEntry: shape.BytesPerEntry}
	if prot := policy.Protection; prot != nil {
		key.policy.Protection, key.protection, key.protects = nil, *prot, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.list, func(c compiledPolicy) bool { return c.key == key }); i >= 0 {
		found := p.list[i]
		p.list = append(slices.Delete(p.list, i, i+1), found)
		return found.plan, nil
	}
	p.compiled++
	plan, err := policy.Compile(id, shape)
	if err != nil {
		return nil, err
	}
	if len(p.list) >= maxPlans {
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.list = append(p.list, compiledPolicy{key, plan})
	return plan, nil
}
