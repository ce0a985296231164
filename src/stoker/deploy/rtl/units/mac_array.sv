// PE sums of products, TAPS x LANES products a cycle each: bias + sum of x * w. One sum is FIRST to LAST beat; the
// weights of a window are WORDS words, read again for each window; biases are one word for each sum of it.
module mac_array #(
    parameter int PE = 1,
    parameter int TAPS = 1,
    parameter int LANES = 1,
    parameter int OWN = 0,            // 1: each PE has its own lane (depthwise); else all see all lanes
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int WEIGHT_W = 8,
    parameter int ACC_W = 24,
    parameter int WORDS = 1,
    parameter int SUMS = 1,           // of a window, a PE each
    parameter WEIGHTS = "",
    parameter BIASES = ""
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     ahead,   // two cycles before in_valid
    input  logic [TAPS*LANES*IN_W-1:0] in_data,
    input  logic                     in_valid,
    input  logic                     in_first,
    input  logic                     in_last,
`ifdef UPDATABLE
    input  logic [33:0]              update,
    output logic [33:0]              update_on,
    input  logic                     shadow,
    input  logic                     ahead_bank,
    input  logic                     in_bank,
    output logic                     out_bank,
`endif
    output logic [PE*ACC_W-1:0]      out_data,
    output logic                     out_valid
);
    localparam int EACH = (OWN != 0) ? TAPS : TAPS * LANES;   // products of a PE
    localparam int LEVELS = (EACH > 1) ? $clog2(EACH) : 0;
    localparam int X_W = IN_W + ((IN_SIGNED != 0) ? 0 : 1);
    localparam int P_W = X_W + WEIGHT_W;
    localparam int S_W = (P_W + LEVELS < ACC_W) ? P_W + LEVELS : ACC_W;  // sums never need more
    localparam int DELAY = LEVELS + 1;                        // from a beat to its sum of products
    localparam int AW = (WORDS > 1) ? $clog2(WORDS) : 1;
    localparam int BW = (SUMS > 1) ? $clog2(SUMS) : 1;

    // Weights: two cycles from the address to the register behind the memory.
    logic [PE*EACH*WEIGHT_W-1:0] read, weight;
    logic [AW-1:0] at;
    always_ff @(posedge clk) begin
        if (rst) at <= '0;
        else if (ahead) at <= (at == AW'(WORDS - 1)) ? '0 : at + 1'b1;
    end
`ifdef UPDATABLE
    logic [33:0] update_biases;
    logic write_weight;
    logic [AW-1:0] write_weight_at;
    logic [PE*EACH*WEIGHT_W-1:0] written_weight;
    chain_tap #(.W(PE*EACH*WEIGHT_W), .DEPTH(WORDS)) new_weights (
        .clk, .rst, .update, .update_on(update_biases), .write(write_weight), .write_at(write_weight_at),
        .written(written_weight)
    );
    bank_memory #(.W(PE*EACH*WEIGHT_W), .DEPTH(WORDS), .FILE(WEIGHTS)) weights (
        .clk, .write(write_weight), .write_at(write_weight_at), .written(written_weight), .shadow, .bank(ahead_bank),
        .at, .word(read)
    );
`else
    logic [PE*EACH*WEIGHT_W-1:0] weights [WORDS];
    initial $readmemh(WEIGHTS, weights);
    always_ff @(posedge clk) read <= weights[at];
`endif
    always_ff @(posedge clk) weight <= read;

    logic [DELAY-1:0] valid, first, last;
    always_ff @(posedge clk) begin
        valid <= rst ? '0 : DELAY'({valid, in_valid});
        first <= DELAY'({first, in_first});
        last <= DELAY'({last, in_last});
    end

    // Biases: the word for the next sum is read while one begins.
    logic [PE*ACC_W-1:0] bias;
    logic [BW-1:0] sum, next_sum;
    logic begins;
    assign begins = valid[DELAY-1] && first[DELAY-1];
    assign next_sum = rst ? '0 : !begins ? sum : (sum == BW'(SUMS - 1)) ? '0 : sum + 1'b1;
    always_ff @(posedge clk) begin
        sum <= next_sum;
        out_valid <= !rst && valid[DELAY-1] && last[DELAY-1];
    end

`ifdef UPDATABLE
    logic [DELAY:0] banks;   // before each step, and behind the sum
    logic write_bias;
    logic [BW-1:0] write_bias_at;
    logic [PE*ACC_W-1:0] written_bias;
    assign banks[0] = in_bank;
    always_ff @(posedge clk) banks[DELAY:1] <= banks[DELAY-1:0];
    always_ff @(posedge clk) out_bank <= banks[DELAY];
    chain_tap #(.W(PE*ACC_W), .DEPTH(SUMS)) new_biases (
        .clk, .rst, .update(update_biases), .update_on, .write(write_bias), .write_at(write_bias_at),
        .written(written_bias)
    );
    // Of the beat that comes to the sum in the next cycle.
    bank_memory #(.W(PE*ACC_W), .DEPTH(SUMS), .FILE(BIASES)) biases (
        .clk, .write(write_bias), .write_at(write_bias_at), .written(written_bias), .shadow, .bank(banks[DELAY-1]),
        .at(next_sum), .word(bias)
    );
`else
    logic [PE*ACC_W-1:0] biases [SUMS];
    initial $readmemh(BIASES, biases);
    always_ff @(posedge clk) bias <= biases[next_sum];
`endif

    generate
        for (genvar p = 0; p < PE; p++) begin : pe
            logic [EACH*P_W-1:0] products;
            logic signed [S_W-1:0] total;
            logic signed [ACC_W-1:0] acc;

            for (genvar k = 0; k < EACH; k++) begin : lane
                localparam int FROM = ((OWN != 0) ? k * LANES + p : k) * IN_W;
                logic signed [X_W-1:0] x;
                logic signed [WEIGHT_W-1:0] w;
                if (IN_SIGNED != 0) begin : with_sign
                    assign x = in_data[FROM +: IN_W];
                end else begin : without
                    assign x = {1'b0, in_data[FROM +: IN_W]};
                end
                assign w = weight[(p*EACH+k)*WEIGHT_W +: WEIGHT_W];
                always_ff @(posedge clk) products[k*P_W +: P_W] <= P_W'(x) * P_W'(w);
            end

            adder_tree #(.COUNT(EACH), .IN_W(P_W), .OUT_W(S_W), .LEVELS(LEVELS)) tree (
                .clk, .in_data(products), .total
            );
            always_ff @(posedge clk) begin
                if (valid[DELAY-1]) begin
                    acc <= (first[DELAY-1] ? $signed(bias[p*ACC_W +: ACC_W]) : acc) + ACC_W'(total);
                end
            end
            assign out_data[p*ACC_W +: ACC_W] = acc;
        end
    endgenerate
endmodule
