// Package transport moves frames, calls and streams between the nodes of a
// cluster. It knows addresses and classes of traffic, and no meanings.
package transport
