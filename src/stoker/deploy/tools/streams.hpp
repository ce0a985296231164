// What harnesses of dataflow designs and of engines share: words of ports, pauses, files, the rules of a stream.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

using Bytes = std::vector<uint8_t>;

template <typename Port>
void put(Port& port, const uint8_t* bytes, size_t count) {
    if constexpr (std::is_integral_v<Port>) {
        uint64_t word = 0;
        std::memcpy(&word, bytes, count);
        port = static_cast<Port>(word);
    } else {
        for (size_t at = 0; at < count; at += 4) {
            uint32_t word = 0;
            std::memcpy(&word, bytes + at, count - at < 4 ? count - at : 4);
            port[at / 4] = word;
        }
    }
}

template <typename Port>
void get(const Port& port, uint8_t* bytes, size_t count) {
    if constexpr (std::is_integral_v<Port>) {
        uint64_t word = port;
        std::memcpy(bytes, &word, count);
    } else {
        for (size_t at = 0; at < count; at += 4) {
            uint32_t word = port[at / 4];
            std::memcpy(bytes + at, &word, count - at < 4 ? count - at : 4);
        }
    }
}

struct Random {  // xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators" (2016)
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ULL + 1) {}
    bool chance(double share) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>((state * 0x2545f4914f6cdd1dULL) >> 11) * 0x1p-53 < share;
    }
};

// A stream of results, and the rules that it keeps.
struct Out {
    size_t bytes, words;   // of a word; words of a sample
    Bytes data;
    size_t next = 0;
    bool ready = false;
    bool waiting = false;  // the word before was offered and not taken: it must stay
    Bytes offered;
    bool offered_last = false;
    std::vector<uint64_t> done;  // cycle of each sample's last word

    // The rule that the stream breaks in this cycle, if it does. A word that is taken is kept.
    std::string observe(bool valid, const Bytes& word, bool last, uint64_t cycle) {
        const char* broken = "";
        if (waiting && !valid) broken = "tvalid fell before the word was taken";
        else if (waiting && (word != offered || last != offered_last)) broken = "a word changed before it was taken";
        else if (valid && last != ((next + 1) % words == 0)) broken = "tlast is not at the end of a sample";
        waiting = valid && !ready;
        offered = word;
        offered_last = last;
        if (valid && ready) {
            data.insert(data.end(), word.begin(), word.end());
            if (++next % words == 0) done.push_back(cycle);
        }
        return broken;
    }
};

inline Bytes read_file(const std::string& path) {
    Bytes found;
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) {
        std::perror(path.c_str());
        std::exit(3);
    }
    uint8_t buffer[1 << 16];
    for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, file)) > 0;) found.insert(found.end(), buffer, buffer + count);
    std::fclose(file);
    return found;
}

inline bool write_file(const std::string& path, const Bytes& data) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    const bool written = file && std::fwrite(data.data(), 1, data.size(), file) == data.size();
    const bool closed = file && !std::fclose(file);
    if (!written || !closed) std::perror(path.c_str());
    return written && closed;
}
