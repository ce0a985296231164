// clamp((((acc + bias) * M + 2^(shift-1)) >> shift) + zero, low, high) in each lane; eight registers deep. The scales
// are those of the word that came in a cycle before: a memory was read in between.
module engine_requantise #(
    parameter int LANES = 8,
    parameter int ACC_W = 35,
    parameter int M_W = 16
) (
    input  logic                         clk,
    input  logic [LANES*ACC_W-1:0]       sums,
    input  logic [LANES*(ACC_W+M_W)-1:0] scales,   // biases of all lanes, then factors
    input  logic [5:0]                   shift,
    input  logic [17:0]                  zero,
    input  logic [17:0]                  low,
    input  logic [17:0]                  high,
    output logic [LANES*16-1:0]          results
);
    localparam int SPLIT = 17;                     // so that both parts fit multipliers of 18 x 18
    localparam int P_W = ACC_W + M_W + 1;
    localparam int LOW_W = SPLIT + M_W + 2;
    localparam int HIGH_W = ACC_W - SPLIT + M_W + 1;
    logic halved;                                  // of an instruction, long before its first sum
    logic [5:0] less_one;
    always_ff @(posedge clk) begin
        halved <= shift != '0;
        less_one <= (shift != '0) ? shift - 1'b1 : '0;
    end

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [ACC_W-1:0] held, acc;
            logic signed [M_W:0] by;
            logic signed [LOW_W-1:0] low_part;
            logic signed [HIGH_W-1:0] high_part;
            logic signed [P_W-1:0] product, coarse, shifted, kept;
            logic signed [P_W:0] placed;
            logic up, unused_up;
            always_ff @(posedge clk) begin
                held <= sums[i*ACC_W +: ACC_W];
                acc <= held + $signed(scales[i*ACC_W +: ACC_W]);
                by <= {1'b0, scales[LANES*ACC_W+i*M_W +: M_W]};
                low_part <= LOW_W'($signed({1'b0, acc[SPLIT-1:0]})) * LOW_W'(by);
                high_part <= HIGH_W'($signed(acc[ACC_W-1:SPLIT])) * HIGH_W'(by);
                product <= (P_W'(high_part) <<< SPLIT) + P_W'(low_part);
                coarse <= product >>> {less_one[5:3], 3'd0};
                shifted <= coarse >>> less_one[2:0];
                // Half a step is a one below the point: carried in from one place further down.
                {placed, unused_up} <= {(P_W+1)'(kept), up} + {(P_W+1)'($signed(zero)), up};
                if (placed > (P_W+1)'($signed(high))) results[i*16 +: 16] <= high[15:0];
                else if (placed < (P_W+1)'($signed(low))) results[i*16 +: 16] <= low[15:0];
                else results[i*16 +: 16] <= placed[15:0];
            end
            assign kept = halved ? shifted >>> 1 : shifted;
            assign up = halved && shifted[0];
        end
    endgenerate
    logic unused;
    assign unused = &{1'b0, high, low};
endmodule
