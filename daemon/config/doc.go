// Package config turns a TOML file and the overrides of a command line into one
// checked value that nobody changes afterwards. It owns the list of keys with
// their types, defaults, limits and documentation, the position of every
// mistake in the file, where each effective value came from, the folders the
// appliance lives in, and the file of API keys. What a value means is the
// business of the package that its documentation names.
//
// The struct tags of Config are the only list of keys: the loader, the
// commented example file and `tandem config show` are all made from them.
package config
