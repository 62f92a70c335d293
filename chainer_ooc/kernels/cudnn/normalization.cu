/* Batch normalization of maps (N, C, spatial...), channels first. normalization.py defines the types and launches it:
 *
 *   MAP        element of the maps: float, double or __half
 *   GAMMA      element of scale, shift and their gradients: float or double
 *   RUNNING    element of the running statistics: float, double or __half
 *   COMPUTED   what is computed in, the wider of MAP and GAMMA: float or double
 *   MOVED      what running statistics are moved in, the wider of COMPUTED and RUNNING
 *   WIDTH      elements of a unit, which a thread reads or writes at once: a power of two that divides a plane, of 16
 *              bytes at most
 *
 * A plane is one channel of one picture. The threads of a block are columns (x) along a plane and rows (y). Which
 * thread takes which elements, and in which order, follows from the shape alone (P2): addresses that are no multiples
 * of a unit's bytes have the same units read element by element. So that the bits do not depend on what a compiler
 * fuses, products are fused here by name, and the options of the compiler fuse no other.
 */

#define THREADS 256        /* of a block that reads or writes maps, at most */
#define MERGING_THREADS 32 /* of a block that merges the parts of a channel */

struct alignas(sizeof(MAP) * WIDTH) Unit {
    MAP at[WIDTH];
};

/* Units that a thread has on the way at once: 32 bytes for each map keep the memory of an H100 busy. */
constexpr int BATCH = 32 / sizeof(Unit) < 8 ? 32 / sizeof(Unit) : 8;

/* Number, mean and sum of squared differences from the mean, of some elements. */
struct Moments {
    COMPUTED count, mean, squares;
};

/* Sums over some elements of a gradient, and of it times the difference of x from its mean. */
struct Totals {
    COMPUTED gradient, product;
};

/* gx = scale * (gy - ((x - mean) * slope + offset)) */
struct Coefficients {
    COMPUTED scale, slope, offset;
};

__device__ inline float number(float value) { return value; }
__device__ inline double number(double value) { return value; }
#ifdef HALF
__device__ inline float number(__half value) { return __half2float(value); }
#endif

/* The two together, by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
 * variances" (1979): no difference of large numbers is taken. */
__device__ inline Moments merged(Moments one, Moments other)
{
    if (other.count == 0)
        return one;
    COMPUTED count = one.count + other.count, share = other.count / count, difference = other.mean - one.mean;
    return {count, fma(difference, share, one.mean),
            one.squares + fma(difference * difference, one.count * share, other.squares)};
}

__device__ inline Totals merged(Totals one, Totals other)
{
    return {one.gradient + other.gradient, one.product + other.product};
}

/* What all threads of a block have, together, for the thread 0; LARGEST: a power of two, no block has more threads. */
template <int LARGEST, class Sum> __device__ inline Sum merged_in_block(Sum mine)
{
    __shared__ Sum sums[LARGEST];
    int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    sums[thread] = mine;
    for (int step = LARGEST / 2; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step && thread + step < threads)
            sums[thread] = merged(sums[thread], sums[thread + step]);
    }
    return thread ? mine : sums[0]; /* others would read what the thread 0 writes */
}

/* The parts of a channel, together, for the thread 0. */
template <class Sum> __device__ inline Sum merged_parts(const Sum *parts, int count, Sum sum)
{
    for (int part = threadIdx.x; part < count; part += MERGING_THREADS)
        sum = merged(sum, parts[part]);
    return merged_in_block<MERGING_THREADS>(sum);
}

/* The units of one channel that a thread takes: of every `step`th picture, every blockDim.x-th of one cut of the plane.
 * Numbers of pictures, and of units in a cut, fit an int; places in the map need not. */
struct Walk {
    long long place, jump;
    int left, along, turns, turn;

    __device__ Walk(int first, int last, int step, int channel, int channels, long long plane_units, int cut,
                    int cut_units)
    {
        long long begin = (long long)cut * cut_units, rest = plane_units - begin;
        int units = rest < cut_units ? (int)rest : cut_units, columns = blockDim.x, column = threadIdx.x;
        turn = turns = column < units ? (units - column - 1) / columns + 1 : 0;
        left = first < last ? ((last - first - 1) / step + 1) * turns : 0;
        along = columns * WIDTH;
        place = (((long long)first * channels + channel) * plane_units + begin + column) * WIDTH;
        jump = (long long)step * channels * plane_units * WIDTH - (long long)turns * along;
    }
    __device__ void advance()
    {
        left--;
        place += along;
        if (--turn == 0) {
            turn = turns;
            place += jump;
        }
    }
};

/* Does something for each of the next units, with its number; gives how many there were. Where there are as many as
 * can be on the way at once, as nearly always, no load waits for a comparison. */
template <class Act> __device__ inline int for_next_units(Walk &walk, Act act)
{
    int there = walk.left < BATCH ? walk.left : BATCH;
    if (there == BATCH) {
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            act(k);
            walk.advance();
        }
    } else {
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (k < there) {
                act(k);
                walk.advance();
            }
    }
    return there;
}

template <class Pointer> __device__ inline bool is_aligned(Pointer map)
{
    return WIDTH == 1 || reinterpret_cast<unsigned long long>(map) % sizeof(Unit) == 0;
}

template <bool ALIGNED> __device__ inline Unit read(const MAP *map)
{
    if constexpr (ALIGNED) {
        return *reinterpret_cast<const Unit *>(map);
    } else {
        Unit unit;
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            unit.at[i] = map[i];
        return unit;
    }
}

template <bool ALIGNED> __device__ inline void write(MAP *map, const Unit &unit)
{
    if constexpr (ALIGNED) {
        *reinterpret_cast<Unit *>(map) = unit;
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            map[i] = unit.at[i];
    }
}

/* The walk of a block that sums: channels change fastest from block to block, then parts. A part is every so many
 * pictures, so that all blocks together go through the map from its begin to its end. */
__device__ inline Walk walk_of_part(int channels, int pictures, long long units, int groups, int cuts, int cut_units)
{
    int part = blockIdx.x / channels, rows = blockDim.y;
    return Walk(part / cuts * rows + threadIdx.y, pictures, groups * rows, blockIdx.x % channels, channels, units,
                part % cuts, cut_units);
}

/* The first element of a channel. What threads and blocks have as means are differences from it: rounded like the
 * deviations, not like a mean that is thousands of them. */
__device__ inline COMPUTED origin_of(const MAP *__restrict__ x, int channel, long long units)
{
    return number(x[channel * units * WIDTH]);
}

/* Shifted by the first element of the thread, the sums are small where the mean is large, and where the first element
 * of the channel is an outlier. */
template <bool ALIGNED>
__device__ inline Moments moments_of_thread(const MAP *__restrict__ x, Walk walk, COMPUTED origin)
{
    COMPUTED shift = 0, sum = 0, squares = 0;
    int count = 0;
    while (walk.left) {
        Unit units[BATCH];
        int there = for_next_units(walk, [&](int k) { units[k] = read<ALIGNED>(x + walk.place); });
        if (count == 0)
            shift = number(units[0].at[0]);
        COMPUTED batch_sum = 0, batch_squares = 0; /* for the rounding of a sum grows with its terms */
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (k < there) {
                count += WIDTH;
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    COMPUTED difference = number(units[k].at[i]) - shift;
                    batch_sum += difference;
                    batch_squares = fma(difference, difference, batch_squares);
                }
            }
        sum += batch_sum;
        squares += batch_squares;
    }
    if (count == 0)
        return {0, 0, 0};
    COMPUTED mean = sum / count, rest = fma(-sum, mean, squares);
    return {(COMPUTED)count, shift - origin + mean, rest < 0 ? 0 : rest}; /* NaN stays NaN */
}

/* parts: (C, groups * cuts). */
extern "C" __global__ void __launch_bounds__(THREADS)
    ooc_bn_moments(const MAP *__restrict__ x, Moments *__restrict__ parts, int channels, int pictures, long long units,
                   int groups, int cuts, int cut_units)
{
    Walk walk = walk_of_part(channels, pictures, units, groups, cuts, cut_units);
    COMPUTED origin = origin_of(x, blockIdx.x % channels, units);
    Moments mine = is_aligned(x) ? moments_of_thread<true>(x, walk, origin) : moments_of_thread<false>(x, walk, origin);
    Moments sum = merged_in_block<THREADS>(mine);
    if (threadIdx.x + threadIdx.y == 0)
        parts[(blockIdx.x % channels) * groups * cuts + blockIdx.x / channels] = sum;
}

/* elements: of a channel. running_mean and running_var may be null. adjust: elements / (elements - 1), or 1. */
extern "C" __global__ void __launch_bounds__(MERGING_THREADS)
    ooc_bn_statistics(const MAP *__restrict__ x, const Moments *__restrict__ parts, long long units, int count,
                      COMPUTED elements, double eps, double decay, double adjust, COMPUTED *__restrict__ means,
                      COMPUTED *__restrict__ var, COMPUTED *__restrict__ inv_std, RUNNING *__restrict__ running_mean,
                      RUNNING *__restrict__ running_var)
{
    int channel = blockIdx.x;
    Moments sum = merged_parts(parts + (long long)channel * count, count, Moments{0, 0, 0});
    if (threadIdx.x)
        return;
    COMPUTED mean = origin_of(x, channel, units) + sum.mean, variance = sum.squares / elements;
    means[channel] = mean;
    var[channel] = variance;
    inv_std[channel] = 1 / sqrt(variance + (COMPUTED)eps);
    if (running_mean) {
        MOVED stays = decay, comes = 1 - decay;
        running_mean[channel] = static_cast<RUNNING>(
            (MOVED)number(running_mean[channel]) * stays + (MOVED)mean * comes);
        running_var[channel] = static_cast<RUNNING>(
            (MOVED)number(running_var[channel]) * stays + (MOVED)variance * comes * (MOVED)adjust);
    }
}

/* The walk of a block that writes a map: rows are channels, which are neighbours in memory. From the end of the map to
 * its begin: what the sums have read last is in the cache still. */
__device__ inline Walk walk_of_share(int channel, int channels, int pictures, long long units, int share, int cuts,
                                     int cut_units, int block)
{
    int first = block / cuts * share, last = first + share;
    return Walk(first, last < pictures ? last : pictures, 1, channel, channels, units, block % cuts, cut_units);
}

template <bool ALIGNED>
__device__ inline void normalize(const MAP *__restrict__ x, MAP *__restrict__ y, Walk walk, COMPUTED mean,
                                 COMPUTED scale, COMPUTED shift)
{
    while (walk.left) {
        Unit units[BATCH];
        Walk writing = walk;
        int there = for_next_units(walk, [&](int k) { units[k] = read<ALIGNED>(x + walk.place); });
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (k < there) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    units[k].at[i] = static_cast<MAP>(fma(number(units[k].at[i]) - mean, scale, shift));
                write<ALIGNED>(y + writing.place, units[k]);
                writing.advance();
            }
    }
}

/* share: pictures of a block. */
extern "C" __global__ void __launch_bounds__(THREADS)
    ooc_bn_normalize(const MAP *__restrict__ x, MAP *__restrict__ y, const COMPUTED *__restrict__ mean,
                     const COMPUTED *__restrict__ inv_std, const GAMMA *__restrict__ gamma,
                     const GAMMA *__restrict__ beta, int channels, int pictures, long long units, int share, int cuts,
                     int cut_units)
{
    int rows = blockDim.y, sides = (channels - 1) / rows + 1, block = gridDim.x - 1 - blockIdx.x;
    int channel = block % sides * rows + threadIdx.y;
    if (channel >= channels)
        return;
    Walk walk = walk_of_share(channel, channels, pictures, units, share, cuts, cut_units, block / sides);
    COMPUTED scale = (COMPUTED)gamma[channel] * inv_std[channel], shift = beta[channel];
    if (is_aligned(x) && is_aligned(y))
        normalize<true>(x, y, walk, mean[channel], scale, shift);
    else
        normalize<false>(x, y, walk, mean[channel], scale, shift);
}

template <bool ALIGNED>
__device__ inline Totals totals_of_thread(const MAP *__restrict__ x, const MAP *__restrict__ gy, Walk walk,
                                          COMPUTED mean)
{
    Totals sum = {0, 0};
    while (walk.left) {
        Unit xs[BATCH], gys[BATCH];
        int there = for_next_units(walk, [&](int k) {
            xs[k] = read<ALIGNED>(x + walk.place);
            gys[k] = read<ALIGNED>(gy + walk.place);
        });
        Totals batch = {0, 0};
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (k < there) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    COMPUTED gradient = number(gys[k].at[i]);
                    batch.gradient += gradient;
                    batch.product = fma(gradient, number(xs[k].at[i]) - mean, batch.product);
                }
            }
        sum = merged(sum, batch);
    }
    return sum;
}

/* scratch: Coefficients (C,), then the parts, Totals (C, groups * cuts). */
extern "C" __global__ void __launch_bounds__(THREADS)
    ooc_bn_gradient_sums(const MAP *__restrict__ x, const MAP *__restrict__ gy, const COMPUTED *__restrict__ mean,
                         COMPUTED *__restrict__ scratch, int channels, int pictures, long long units, int groups,
                         int cuts, int cut_units)
{
    Walk walk = walk_of_part(channels, pictures, units, groups, cuts, cut_units);
    int channel = blockIdx.x % channels;
    Totals mine = is_aligned(x) && is_aligned(gy) ? totals_of_thread<true>(x, gy, walk, mean[channel])
                                                  : totals_of_thread<false>(x, gy, walk, mean[channel]);
    Totals sum = merged_in_block<THREADS>(mine);
    Totals *parts = reinterpret_cast<Totals *>(reinterpret_cast<Coefficients *>(scratch) + channels);
    if (threadIdx.x + threadIdx.y == 0)
        parts[channel * groups * cuts + blockIdx.x / channels] = sum;
}

extern "C" __global__ void __launch_bounds__(MERGING_THREADS)
    ooc_bn_channel_gradients(COMPUTED *__restrict__ scratch, int channels, int count, COMPUTED elements,
                             const COMPUTED *__restrict__ inv_std, const GAMMA *__restrict__ gamma,
                             GAMMA *__restrict__ ggamma, GAMMA *__restrict__ gbeta)
{
    int channel = blockIdx.x;
    Coefficients *coefficients = reinterpret_cast<Coefficients *>(scratch);
    const Totals *parts = reinterpret_cast<const Totals *>(coefficients + channels);
    Totals sum = merged_parts(parts + (long long)channel * count, count, Totals{0, 0});
    if (threadIdx.x)
        return;
    COMPUTED inverse = inv_std[channel], scale_gradient = sum.product * inverse;
    ggamma[channel] = static_cast<GAMMA>(scale_gradient);
    gbeta[channel] = static_cast<GAMMA>(sum.gradient);
    coefficients[channel] = {(COMPUTED)gamma[channel] * inverse, scale_gradient / elements * inverse,
                             sum.gradient / elements};
}

template <bool ALIGNED>
__device__ inline void gradient(const MAP *__restrict__ x, const MAP *__restrict__ gy, MAP *__restrict__ gx, Walk walk,
                                COMPUTED mean, Coefficients by)
{
    while (walk.left) {
        Unit xs[BATCH], gys[BATCH];
        Walk writing = walk;
        int there = for_next_units(walk, [&](int k) {
            xs[k] = read<ALIGNED>(x + walk.place);
            gys[k] = read<ALIGNED>(gy + walk.place);
        });
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (k < there) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    gys[k].at[i] = static_cast<MAP>(by.scale * (
                        number(gys[k].at[i]) - fma(number(xs[k].at[i]) - mean, by.slope, by.offset)));
                write<ALIGNED>(gx + writing.place, gys[k]);
                writing.advance();
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ooc_bn_gradient(const MAP *__restrict__ x, const MAP *__restrict__ gy, MAP *__restrict__ gx,
                    const COMPUTED *__restrict__ mean, const COMPUTED *__restrict__ scratch, int channels,
                    int pictures, long long units, int share, int cuts, int cut_units)
{
    int rows = blockDim.y, sides = (channels - 1) / rows + 1, block = gridDim.x - 1 - blockIdx.x;
    int channel = block % sides * rows + threadIdx.y;
    if (channel >= channels)
        return;
    Walk walk = walk_of_share(channel, channels, pictures, units, share, cuts, cut_units, block / sides);
    Coefficients by = reinterpret_cast<const Coefficients *>(scratch)[channel];
    if (is_aligned(x) && is_aligned(gy) && is_aligned(gx))
        gradient<true>(x, gy, gx, walk, mean[channel], by);
    else
        gradient<false>(x, gy, gx, walk, mean[channel], by);
}
