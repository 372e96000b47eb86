package sample

const gamma = 0x9e3779b97f4a7c15

// mix is SplitMix64's finaliser (Steele, Lea and Flood, 2014; constants of
// Stafford's variant 13).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Random is the random number, 64 bits of it, by which a sequence with this seed
// chooses the token at this position.
func Random(seed uint64, position int) uint64 {
	return mix(mix(seed) + (uint64(position)+1)*gamma)
}
